// node zarrita.mjs MODULES STORE ARRAY...: one line of JSON for each array, {shape, dtype, data: base64}.
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [modules, store, ...arrays] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(join(modules, file)));
const zarr = await load("zarrita/dist/src/index.js");
const { default: FileSystemStore } = await load("@zarrita/storage/dist/src/fs.js");
const root = zarr.root(new FileSystemStore(store));
for (const path of arrays) {
  const array = await zarr.open.v3(root.resolve(path), { kind: "array" });
  const { data, shape } = await zarr.get(array);
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  console.log(JSON.stringify({ shape, dtype: array.dtype, data: bytes.toString("base64") }));
}
