/** Invisible characters, and those that change how others are read: in names, links, code and diffs they are shown. */

// Characters without a shape: zero-width ones, controls of the direction of text (https://trojansource.codes), fillers, and the tags and
// variation selectors in which a text for the model can be hidden. A joiner or a selector within an emoji stays.
const HIDDEN =
  /(?<!\p{Extended_Pictographic}\uFE0F?)\u200D|(?<!\p{Emoji})[\uFE0E\uFE0F]|(?![\u200D\uFE0E\uFE0F])\p{Default_Ignorable_Code_Point}|\u2800/gu;

/**
 * Return a text in which hidden characters are written as e.g. `⟨U+202E⟩`.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(HIDDEN, (character) => `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
