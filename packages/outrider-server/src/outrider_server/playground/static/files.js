// Files that go with a message: text as it is, PDF files as the server reads them, pictures for models that see.
//
//     { kind: "text", name, text, note }        { kind: "image", name, url }      url: data:image/...;base64,...

import { postFile } from "/playground/api.js";

const MOST_BYTES = 8 << 20;
const MOST_CHARACTERS = 200000;
const LONGEST_SIDE = 1536; // pixels; models see with fewer
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/avif"];

export class FileError extends Error {}

// What a message takes of a file. Throws FileError, with the reason and the remedy.
export async function readFile(file, model) {
  const { name, size, type } = file;
  if (size > MOST_BYTES) throw new FileError(`${name} is larger than ${MOST_BYTES >> 20} MB: attach a part of it.`);
  if (PICTURES.includes(type)) return picture(file, model);
  const head = new Uint8Array(await file.slice(0, 5).arrayBuffer());
  const isPdf = String.fromCharCode(...head) === "%PDF-";
  const { text, note } = isPdf ? await pdf(file) : { text: decoded(name, new Uint8Array(await file.arrayBuffer())), note: "" };
  if (!text.trim()) throw new FileError(`${name} is empty.`);
  if (text.length <= MOST_CHARACTERS) return { kind: "text", name, text, note };
  return { kind: "text", name, text: text.slice(0, MOST_CHARACTERS), note: `its first ${MOST_CHARACTERS.toLocaleString("en")} characters` };
}

async function pdf(file) {
  try {
    const { text, pages, pages_read: read } = await postFile("/pdf/text", file, "application/pdf");
    return { text, note: read < pages ? `its first ${read} of ${pages} pages` : `${pages} ${pages === 1 ? "page" : "pages"}` };
  } catch (error) {
    throw new FileError(`${file.name}: ${error.message}`);
  }
}

function decoded(name, bytes) {
  const coding = bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : bytes[0] === 0xfe && bytes[1] === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(coding, { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text.replace(/\r\n?/g, "\n");
  } catch {
    // said below
  }
  throw new FileError(`${name} is no text in UTF-8, no PDF and no picture: convert it first.`);
}

async function picture(file, model) {
  if (!model?.sees_images) {
    throw new FileError(`${model?.id ?? "The model"} does not see pictures: choose a model that does, such as SmolVLM, or attach text.`);
  }
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(scale * bitmap.width));
    canvas.height = Math.max(1, Math.round(scale * bitmap.height));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const url = canvas.toDataURL(file.type === "image/png" && file.size < 300000 ? "image/png" : "image/jpeg", 0.9);
    return { kind: "image", name: file.name, url };
  } catch {
    throw new FileError(`${file.name} cannot be read as a picture.`);
  }
}

// A picture drawn small. The page's policy lets no address of a picture in, so none is given to an element.
export function thumbnail({ name, url }, side = 96) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  canvas.width = canvas.height = side;
  draw(canvas, url, side).catch(() => {}); // a chat that was brought in may hold anything
  return canvas;
}

async function draw(canvas, url, side) {
  const [, type, data] = /^data:(image\/[a-z]+);base64,([A-Za-z0-9+/=]+)$/.exec(url);
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type }));
  const scale = side / Math.max(bitmap.width, bitmap.height);
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
}

// The files as a part of what the model reads.
export function asText({ name, text, note }) {
  const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`{3,}/g)].map(([run]) => run.length + 1)));
  return `File ${name}${note ? ` (${note})` : ""}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

export function size(text) {
  return text.length < 1000 ? `${text.length} characters` : `${(text.length / 1000).toFixed(text.length < 10000 ? 1 : 0)} thousand characters`;
}
