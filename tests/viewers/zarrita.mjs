// node zarrita.mjs MODULES STORE ARRAY..., STORE a path or an address: one line of JSON for each array, {shape, dtype, data: base64}.
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [modules, store, ...arrays] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(join(modules, file)));
const zarr = await load("zarrita/dist/src/index.js");
const kind = store.startsWith("http") ? "fetch" : "fs";
const { default: Store } = await load(`@zarrita/storage/dist/src/${kind}.js`);
const root = zarr.root(new Store(store));
for (const path of arrays) {
  const array = await zarr.open.v3(root.resolve(path), { kind: "array" });
  const { data, shape } = await zarr.get(array);
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  console.log(JSON.stringify({ shape, dtype: array.dtype, data: bytes.toString("base64") }));
}
