// Train a folder that `export_training_step` wrote, by any onnxruntime for JavaScript.
//
// The state is a Map from names to tensors; it is read from, and written as, a file of safetensors.

const ARRAYS = { F32: Float32Array, F64: Float64Array, I64: BigInt64Array, I32: Int32Array, U8: Uint8Array, BOOL: Uint8Array };
const TYPES = { F32: "float32", F64: "float64", I64: "int64", I32: "int32", U8: "uint8", BOOL: "bool" };
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([key, type]) => [type, key]));

export function readState(ort, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const state = new Map();
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (!(dtype in ARRAYS)) throw new Error(`${name} is of type ${dtype}, which is not read here`);
    const copy = bytes.slice(8 + length + begin, 8 + length + end); // aligned, unlike the file
    state.set(name, new ort.Tensor(TYPES[dtype], new ARRAYS[dtype](copy.buffer), shape));
  }
  return state;
}

export function writeState(state) {
  const header = {}, parts = [];
  let offset = 0;
  for (const [name, tensor] of state) {
    const bytes = new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength);
    header[name] = { dtype: NAMES[tensor.type], shape: [...tensor.dims], data_offsets: [offset, offset + bytes.length] };
    parts.push(bytes);
    offset += bytes.length;
  }
  let text = JSON.stringify(header);
  text += " ".repeat((8 - (text.length % 8)) % 8);
  const head = new TextEncoder().encode(text), whole = new Uint8Array(8 + head.length + offset);
  new DataView(whole.buffer).setBigUint64(0, BigInt(head.length), true);
  whole.set(head, 8);
  let at = 8 + head.length;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export class Trainer {
  // `session` runs step.onnx, `description` is training.json, `state` what readState gave.
  constructor(session, description, state) {
    Object.assign(this, { session, description, state });
  }

  // One step: the tensors of a batch, in order; gives the loss, and keeps the new state.
  async step(...batch) {
    const feeds = Object.fromEntries(this.state);
    this.description.batch.forEach((name, i) => { feeds[name] = batch[i]; });
    const results = await this.session.run(feeds);
    for (const [output, input] of Object.entries(this.description.feeds_back)) {
      this.state.set(input, results[output]);
    }
    return results[this.description.loss].data[0];
  }
}
