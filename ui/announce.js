/** The live region: tells people who do not see the page what an answer says, sentence by sentence. */

const region = /** @type {HTMLElement} */ (document.getElementById("announcements"));
const SENTENCE = /[^.!?\n]*[.!?\n]+(?=\s|$)/g;
const KEPT = 20; // sentences

/** @param {string} text */
export function announce(text) {
  const line = document.createElement("p");
  line.textContent = text;
  region.append(line);
  while (region.childElementCount > KEPT) region.firstElementChild?.remove();
}

/** Announces a growing text once, by whole sentences. */
export class SentenceAnnouncer {
  #said = 0;

  /**
   * @param {string} text so far
   * @param {boolean} complete
   */
  update(text, complete) {
    const rest = text.slice(this.#said);
    const whole = complete ? [rest] : (rest.match(SENTENCE) ?? []);
    for (const sentence of whole) {
      this.#said += sentence.length;
      if (sentence.trim()) announce(sentence.trim());
    }
  }
}
