// Bundles the page into the folder named on the command line: hashed names, and an index.html that refers to them.

import { build } from "esbuild";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2];

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
const result = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.ts", style: "src/style.css" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "inline",
  entryNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  outdir: out,
  metafile: true,
  logLevel: "error",
});
const names = Object.keys(result.metafile.outputs).map((path) => basename(path));
const named = (end) => names.find((name) => name.startsWith(end.split(".")[0] + "-") && name.endsWith(`.${end.split(".")[1]}`));
const html = await readFile(join(here, "src", "index.html"), "utf8");
await writeFile(join(out, "index.html"), html.replaceAll("page.js", named("page.js")).replaceAll("style.css", named("style.css")));
