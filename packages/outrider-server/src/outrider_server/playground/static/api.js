// Talking with the server: its models, and event streams chunk by chunk.

// kind: "away" (no answer at all), "broken" (the stream ended early), "refused" (the server said why not).
export class ApiError extends Error {
  constructor(kind, message, { status = null, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { kind, status, code, retryAfter });
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("away", "The server does not answer.");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let told = {};
  try {
    told = (await answer.json()).error;
    if (typeof told === "string") told = { message: told }; // Ollama's
  } catch {
    // a proxy, say, whose page is not for us
  }
  const retryAfter = Number(answer.headers.get("Retry-After")) || null;
  const message = told.message ?? `The server answered with status ${answer.status}.`;
  return new ApiError("refused", message, { status: answer.status, code: told.code ?? null, retryAfter });
}

export async function models() {
  return (await (await ask("/v1/models")).json()).data;
}

// Loads a model that comes and goes, and waits for it.
export async function load(id, signal) {
  await post("/api/generate", { model: id, stream: false }, signal);
}

// "ok", "loading", "draining", "dead", or "away".
export async function health() {
  try {
    const answer = await fetch("/health", { signal: AbortSignal.timeout(5000) });
    return (await answer.json()).status;
  } catch {
    return "away";
  }
}

export async function text(path, headers = {}) {
  return (await ask(path, { headers })).text();
}

export async function post(path, body, signal) {
  return (await ask(path, request(body, signal))).json();
}

export async function postFile(path, file, type) {
  return (await ask(path, { method: "POST", headers: { "Content-Type": type }, body: file })).json();
}

function request(body, signal) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
}

// Yields each chunk of a streamed answer. Chunks are as the engine made them: one for each of its steps.
export async function* stream(path, body, signal) {
  const answer = await ask(path, request({ ...body, stream: true }, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await next(reader);
    if (done) throw new ApiError("broken", "The answer broke off.");
    held += value;
    const frames = held.split("\n\n");
    held = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ")) continue;
      const data = frame.slice(6);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError("broken", chunk.error.message, { code: chunk.error.code });
      yield chunk;
    }
  }
}

async function next(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("broken", "The connection to the server broke off.");
  }
}
