// usage: node node.mjs FOLDER BATCHES.safetensors STEPS
//
// Trains a folder of `export_training_step` in Node, on the batches of a file: `input.0`, `target.0`,
// `input.1`, ... Prints the losses as JSON, and writes the new state to FOLDER/trained.safetensors.
// Install the runtime first: npm install --ignore-scripts onnxruntime-node
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { readState, Trainer, writeState } from "./trainer.mjs";

const ort = createRequire(path.join(process.cwd(), "package.json"))("onnxruntime-node");
const [folder, file, steps] = process.argv.slice(2);
const read = async (name) => new Uint8Array(await readFile(name));

const description = JSON.parse(await readFile(path.join(folder, "training.json"), "utf8"));
const session = await ort.InferenceSession.create(path.join(folder, "step.onnx"));
const trainer = new Trainer(session, description, readState(ort, await read(path.join(folder, "state.safetensors"))));
const batches = readState(ort, await read(file));
const count = [...batches.keys()].filter((name) => name.startsWith("input.")).length;

const losses = [];
for (let i = 0; i < Number(steps); i++) {
  losses.push(await trainer.step(batches.get(`input.${i % count}`), batches.get(`target.${i % count}`)));
}
await writeFile(path.join(folder, "trained.safetensors"), writeState(trainer.state));
console.log(JSON.stringify(losses));
