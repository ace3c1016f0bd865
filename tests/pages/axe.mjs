// Checks pages for accessibility with axe-core, in light and dark, on a wide screen and on a phone, and
// that nothing on a phone has to be scrolled sideways, except for code.
//
//   node tests/pages/axe.mjs MODULES CHROMIUM PAGE…
//
// A PAGE is a file or an address. MODULES is the directory into which npm installed axe-core and playwright-core.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, executablePath, ...pages] = process.argv.slice(2);
if (!pages.length) throw new Error("usage: node axe.mjs MODULES CHROMIUM PAGE…");
const require = createRequire(resolve(modules, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

// Returns the problems of the page, one per line.
async function problems(page, width) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.flatMap(({ id, help, nodes }) =>
    nodes.map((node) => `${id}: ${help}: ${node.html.slice(0, 200)}`));
  const wide = await page.evaluate((width) =>
    [...document.querySelectorAll("main :not(pre *, svg *, caption, thead, thead *, .tip, .tip *)")]
      .filter((element) => element.getBoundingClientRect().right > width + 1)
      .map((element) => element.outerHTML.slice(0, 200)), width);
  return width > 600 ? found : [...found, ...wide.map((html) => `too wide: ${html}`)];
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
let failures = 0;
for (const path of pages) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1200, 400]) {
      const page = await browser.newPage({ colorScheme, viewport: { width, height: 800 } });
      await page.goto(path.startsWith("http:") ? path : pathToFileURL(resolve(path)).href);
      for (const problem of await problems(page, width)) {
        console.error(`${path}, ${colorScheme}, ${width} px: ${problem}`);
        failures += 1;
      }
      await page.close();
    }
  }
  console.log(`${path} checked`);
}
await browser.close();
process.exitCode = failures ? 1 : 0;
