// Bundles each test and runs it by Node.js' own test runner.

import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = mkdtempSync(join(tmpdir(), "timesyncd-page-"));
try {
  const tests = readdirSync(here).filter((name) => name.endsWith(".test.ts"));
  await build({
    absWorkingDir: here,
    entryPoints: tests,
    bundle: true,
    format: "esm",
    platform: "node",
    outdir: out,
    outExtension: { ".js": ".mjs" },
    define: { RECORDINGS: JSON.stringify(join(here, "..", "..", "tests", "recordings")), SOURCES: JSON.stringify(join(here, "..", "src")) },
    logLevel: "error",
  });
  const files = tests.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
  process.exitCode = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
