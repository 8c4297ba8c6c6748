/** The live region: tells people who do not see the page what an answer says, sentence by sentence. */

const region = /** @type {HTMLElement} */ (document.getElementById("announcements"));
const SENTENCE_END = /(?<=[.!?])\s|\n/g;
const MARKS = /\*\*|~~|`+|^[#>|\s]+/g; // of Markdown
const KEPT = 20; // sentences
const MAX_LENGTH = 1_000; // characters of one

/** @param {string} text */
export function announce(text) {
  const line = document.createElement("p");
  line.textContent = text.length > MAX_LENGTH ? `${text.slice(0, MAX_LENGTH)} …` : text;
  region.append(line);
  while (region.childElementCount > KEPT) region.firstElementChild?.remove();
}

/** Remove what was announced: after signing out, it is not for the next user. */
export function forgetAnnouncements() {
  region.replaceChildren();
}

/** Announces a growing text once, by whole sentences. */
export class SentenceAnnouncer {
  #said = 0;

  /**
   * @param {string} text so far
   * @param {boolean} complete
   */
  update(text, complete) {
    if (text.length < this.#said) this.#said = 0; // a new attempt
    let end = this.#said;
    for (const { index } of text.slice(this.#said).matchAll(SENTENCE_END)) end = this.#said + index + 1;
    if (complete) end = text.length;
    for (const sentence of text.slice(this.#said, end).split(SENTENCE_END)) {
      const words = sentence.replaceAll(MARKS, "").trim();
      if (words) announce(words);
    }
    this.#said = end;
  }
}
