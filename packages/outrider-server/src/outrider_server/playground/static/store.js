// Chats and settings in the browser's own storage. They never leave it.

const CHATS = "outrider.chats";
const SETTINGS = "outrider.settings";
const PROMPTS = "outrider.prompts";
const chatKey = (id) => `outrider.chat.${id}`;

const memory = new Map(); // where the browser allows no storage, for as long as the page is open

function read(key) {
  try {
    const text = localStorage.getItem(key) ?? memory.get(key);
    return text ? JSON.parse(text) : null;
  } catch {
    return memory.has(key) ? JSON.parse(memory.get(key)) : null;
  }
}

function write(key, value) {
  const text = JSON.stringify(value);
  try {
    localStorage.setItem(key, text);
    memory.delete(key);
    return true;
  } catch {
    memory.set(key, text);
    return false;
  }
}

// Newest first: { id, title, updated }.
export function list() {
  const found = read(CHATS);
  const entries = Array.isArray(found) ? found : [];
  const whole = ({ id, title } = {}) => typeof id === "string" && typeof title === "string";
  return entries.filter((entry) => entry !== null && whole(entry)).sort((a, b) => b.updated - a.updated);
}

// null: there is no chat, or none that can be read.
export function load(id) {
  const chat = read(chatKey(id));
  if (!isTree(chat)) return null;
  for (const node of Object.values(chat.nodes)) {
    if (node.status === "writing" || node.status === "waiting") node.status = "stopped"; // the page was closed meanwhile
  }
  return chat;
}

// Whether what was stored is a chat as conversation.js has it: a tree, so that no walk along it is endless.
export function isTree(chat) {
  const nodes = chat?.nodes;
  if (!nodes?.root || nodes.root.parent !== null || typeof chat.system !== "string") return false;
  return Object.entries(nodes).every(([id, node]) => node?.id === id && typeof node.content === (id === "root" ? "undefined" : "string")
    && areFiles(node.files ?? []) && Array.isArray(node.children) && node.children.every((child) => nodes[child]?.parent === id)
    && (node.chosen === null || node.children.includes(node.chosen)) && (id === "root" || Object.hasOwn(nodes, node.parent)));
}

function areFiles(files) {
  return Array.isArray(files) && files.every((file) => typeof file?.name === "string" && (file.kind === "image" ? typeof file.url === "string"
    : file.kind === "text" && typeof file.text === "string" && typeof (file.note ?? "") === "string"));
}

// Where there is no room, the tokens and drafts of old answers go first; false if even that does not help.
export function save(chat) {
  const { id, title, updated } = chat;
  const others = list().filter((other) => other.id !== id);
  if (write(chatKey(id), chat)) return write(CHATS, [{ id, title, updated }, ...others]);
  for (const other of [...others].reverse()) {
    dropSteps(other.id);
    if (write(chatKey(id), chat)) return write(CHATS, [{ id, title, updated }, ...others]);
  }
  write(CHATS, [{ id, title, updated }, ...others]);
  return write(chatKey(id), withoutSteps(chat));
}

function dropSteps(id) {
  const chat = read(chatKey(id));
  if (chat) write(chatKey(id), withoutSteps(chat));
}

function withoutSteps(chat) {
  const nodes = Object.entries(chat.nodes).map(([id, { steps: _, ...node }]) => [id, node]);
  return { ...chat, nodes: Object.fromEntries(nodes) };
}

export function remove(id) {
  write(CHATS, list().filter((chat) => chat.id !== id));
  memory.delete(chatKey(id));
  try {
    localStorage.removeItem(chatKey(id));
  } catch {
    // nothing was stored
  }
}

export function loadSettings() {
  const found = read(SETTINGS);
  return typeof found === "object" && found !== null ? found : {};
}
export const saveSettings = (settings) => write(SETTINGS, settings);

// null: none were ever kept.
export const loadPrompts = () => read(PROMPTS);
export const savePrompts = (prompts) => write(PROMPTS, prompts);

// Another tab has changed the list.
export function onChange(listener) {
  addEventListener("storage", (event) => { if (event.key === CHATS) listener(); });
}
