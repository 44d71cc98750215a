"""What the pixels of a page show."""

from __future__ import annotations

from chromium import Page

#: JavaScript: how many pixels of the image are green.
_GREEN = """(() => {
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d");
  const image = window.shot;
  [canvas.width, canvas.height] = [image.width, image.height];
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  let green = 0;
  for (let at = 0; at < data.length; at += 4) if (data[at + 1] > data[at] + 25 && data[at + 1] > data[at + 2] + 12) green += 1;
  return green;
})()"""


def colour(name: str) -> str:
    """JavaScript: a colour of the style sheet as the present theme has it, as six hexadecimal digits."""
    return f"""(() => {{
      const probe = document.body.appendChild(document.createElement("i"));
      probe.style.color = "var(--{name})";
      const parts = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3);
      probe.remove();
      return parts.map((part) => Number(part).toString(16).padStart(2, "0")).join("");
    }})()"""


async def green_pixels(page: Page) -> int:
    """How many pixels of what a reader sees are green."""
    shot = (await page.command("Page.captureScreenshot", format="png"))["data"]
    load = f"new Promise((done) => {{ window.shot = new Image(); window.shot.onload = () => done(true); window.shot.src = 'data:image/png;base64,{shot}'; }})"
    await page.evaluate(load)
    return int(await page.evaluate(_GREEN))
