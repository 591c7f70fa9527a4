// Pulls rows from a lookup service with only Node.js: HTTP/2, and a few bytes of protobuf.
//
//   node node_client.mjs 127.0.0.1:7433 item 7 -1
//
// If a service has several shards, pass one address per shard, in the order of the shards, separated by commas.
// The environment variable TOKEN is sent as the token. Prints one line of JSON. A program with more methods
// should generate its messages from lookup.proto with @grpc/grpc-js and @grpc/proto-loader.

import http2 from "node:http2";

const NUM_PARTITIONS = 4096n;
const DEADLINE_SECONDS = 5;

/** Returns the partition of an id. Shard partition * num_shards / 4096, rounded down, has its row. */
export function partitionOf(id) {
  const multiply = (left, right) => BigInt.asUintN(64, left * right);
  let bits = BigInt.asUintN(64, id);
  bits = multiply(bits ^ (bits >> 33n), 0xff51afd7ed558ccdn);
  bits = multiply(bits ^ (bits >> 33n), 0xc4ceb9fe1a85ec53n);
  bits ^= bits >> 33n;
  return bits >> 52n;
}

export function shardOf(id, numShards) {
  return (partitionOf(id) * BigInt(numShards)) / NUM_PARTITIONS;
}

function varint(value) {
  const bytes = [];
  for (; value >= 0x80; value = Math.floor(value / 128)) bytes.push((value % 128) | 0x80);
  return Buffer.from([...bytes, value]);
}

/** Encodes a field of bytes, text or a message. */
function field(number, content) {
  return Buffer.concat([varint((number << 3) | 2), varint(content.length), content]);
}

/** Encodes a PullRequest with one table; ids are int64, little-endian. */
function pullRequest(table, ids) {
  const content = Buffer.alloc(8 * ids.length);
  ids.forEach((id, place) => content.writeBigInt64LE(id, 8 * place));
  const tableIds = Buffer.concat([field(1, Buffer.from(table)), field(2, content)]);
  return field(1, tableIds);
}

/** Decodes a message: field number → values, numbers for varints and bytes for all others. */
function fieldsOf(message) {
  const fields = new Map();
  let at = 0;
  const readVarint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = message[at++];
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.length) {
    const key = readVarint();
    const wireType = key & 7;
    let value;
    if (wireType === 0) {
      value = readVarint();
    } else {
      const length = wireType === 2 ? readVarint() : wireType === 1 ? 8 : 4;
      value = message.subarray(at, (at += length));
    }
    const number = Math.floor(key / 8);
    fields.set(number, [...(fields.get(number) ?? []), value]);
  }
  return fields;
}

/** Calls a method; resolves to the reply, or rejects with the status and message of the service. */
function call(address, method, message) {
  return new Promise((resolve, reject) => {
    const session = http2.connect(`http://${address}`);
    session.on("error", reject);
    const stream = session.request({
      ":method": "POST",
      ":path": `/sparring.serving.v1.Lookup/${method}`,
      "content-type": "application/grpc",
      te: "trailers",
      "grpc-timeout": `${DEADLINE_SECONDS}S`,
      ...(process.env.TOKEN ? { authorization: `Bearer ${process.env.TOKEN}` } : {}),
    });
    const chunks = [];
    let status = {};
    const takeStatus = (headers) => {
      if ("grpc-status" in headers) status = headers;
    };
    stream.on("response", takeStatus); // errors come without a message
    stream.on("trailers", takeStatus);
    stream.on("data", (chunk) => chunks.push(chunk));
    stream.on("error", reject);
    stream.on("close", () => {
      session.close();
      if (status["grpc-status"] !== "0") {
        const text = decodeURIComponent(status["grpc-message"] ?? "the connection ended");
        reject(new Error(`status ${status["grpc-status"]}: ${text}`));
        return;
      }
      // The first byte tells whether the message is compressed, the next four contain its length.
      resolve(Buffer.concat(chunks).subarray(5));
    });
    const head = Buffer.alloc(5);
    head.writeUInt32BE(message.length, 1);
    stream.end(Buffer.concat([head, message]));
  });
}

/** Pulls rows from one shard. */
async function pull(address, table, ids) {
  const answer = fieldsOf(await call(address, "Pull", pullRequest(table, ids)));
  const rows = fieldsOf(answer.get(1)[0]);
  const dim = rows.get(2)[0];
  const content = rows.get(3)[0];
  const bits = rows.get(4)[0];
  const elements = (row) => Array.from({ length: dim }, (_, place) => content.readFloatLE(4 * (row * dim + place)));
  return {
    rows: ids.map((_, row) => elements(row)),
    found: ids.map((_, place) => Boolean((bits[place >> 3] >> (place & 7)) & 1)),
    version: fieldsOf(answer.get(2)[0]).get(3)[0].toString(),
  };
}

function parseId(text) {
  const id = /^-?\d+$/.test(text) ? BigInt(text) : null; // BigInt("") is 0
  if (id === null || BigInt.asIntN(64, id) !== id) {
    throw new Error(`found id "${text}", expected an integer from -2^63 to 2^63 - 1`);
  }
  return id;
}

async function main(servers, table, ...given) {
  const ids = given.map(parseId);
  const addresses = servers.split(",");
  const shards = ids.map((id) => Number(shardOf(id, addresses.length)));
  const rows = [];
  const found = [];
  const versions = new Set();
  const pulls = addresses.map(async (address, shard) => {
    const places = [...ids.keys()].filter((place) => shards[place] === shard);
    if (places.length === 0) return;
    const answer = await pull(address, table, places.map((place) => ids[place]));
    places.forEach((place, row) => {
      rows[place] = answer.rows[row];
      found[place] = answer.found[row];
    });
    versions.add(answer.version);
  });
  await Promise.all(pulls);
  const partitions = ids.map((id) => Number(partitionOf(id)));
  console.log(JSON.stringify({ rows, found, versions: [...versions], partitions, shards }));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
