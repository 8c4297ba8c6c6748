/** Markdown to safe DOM. */

/** An answer that grows. Put `element` into the page once, and call `update` with the whole text so far. */
export class Markdown {
  element = document.createElement("div");

  constructor() {
    this.element.className = "markdown";
  }

  /**
   * @param {string} text
   * @param {boolean} _complete
   */
  update(text, _complete) {
    this.element.textContent = text;
  }
}
