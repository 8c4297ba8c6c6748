/** Invisible characters, and those that change how others are read: in names, links, code and diffs they are shown. */

// Zero-width and soft characters, and controls of the direction of text (https://trojansource.codes). A joiner within an emoji stays.
const HIDDEN = /(?<!\p{Extended_Pictographic}\uFE0F?)\u200D|[\u00AD\u061C\u180E\u200B\u200C\u200E\u200F\u202A-\u202E\u2060-\u2069\uFEFF]/gu;

/**
 * Return a text in which hidden characters are written as e.g. `⟨U+202E⟩`.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(HIDDEN, (character) => `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
