/** The format of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). */

/**
 * @typedef {object} ServerEvent
 * @property {string | null} id
 * @property {string} data
 */

const LINE_END = /\r\n|\n|\r(?=.)/s;

/**
 * Yield the events of a body, and null for each piece of bytes without a whole event, such as a comment.
 * An event that the end of the body cuts is left out.
 * @param {ReadableStream<Uint8Array<ArrayBuffer>>} body
 * @returns {AsyncGenerator<ServerEvent | null>}
 */
export async function* readEvents(body) {
  let rest = "";
  /** @type {string[]} */
  let data = [];
  /** @type {string | null} */
  let id = null;
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    // A long line arrives in many pieces: only a piece with a line end is split.
    rest += text;
    if (!text.includes("\n") && !text.includes("\r")) {
      yield null;
      continue;
    }
    const lines = rest.split(LINE_END);
    rest = lines.pop() ?? "";
    yield null;
    for (const line of lines) {
      const [name, value] = field(line);
      if (line === "") {
        if (data.length) yield { id, data: data.join("\n") };
        [data, id] = [[], null];
      } else if (name === "data") data.push(value);
      else if (name === "id") id = value;
    }
  }
}

/**
 * @param {string} line
 * @returns {[string, string]}
 */
function field(line) {
  const colon = line.indexOf(":");
  if (colon < 0) return [line, ""];
  return [line.slice(0, colon), line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1)];
}
