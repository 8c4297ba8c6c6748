/** Characters that hide something: without a shape, that change how others are read, or that move the rest of a line away. */

// Characters without a shape: zero-width ones, controls of the direction of text (https://trojansource.codes), fillers, and the tags and
// variation selectors in which a text for the model can be hidden. A joiner or a selector within an emoji or a keycap stays.
const HIDDEN = new RegExp(
  [
    /(?<!(?![©®™])\p{Extended_Pictographic}\p{Emoji_Modifier}?\uFE0F?)\u200D|\u200D(?!\p{Extended_Pictographic})/u,
    /(?<!\p{Extended_Pictographic}|[0-9#*](?=\uFE0F\u20E3))[\uFE0E\uFE0F]/u,
    /(?![\u200D\uFE0E\uFE0F])\p{Default_Ignorable_Code_Point}|[\u2800\uFFF9-\uFFFC]/u,
  ].map(({ source }) => source).join("|"),
  "gu",
);

// Controls, and the ends of lines other than a line feed, with or without a carriage return: they have no shape, and some of them overwrite.
const CONTROLS = /\r(?!\n)|[\0-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\u2028\u2029]/g;
// Blanks that would move the rest of a line out of sight.
const BLANKS = /[\t\p{Zs}]{100,}|\t{12,}/gu;

/**
 * Return a text in which hidden characters are written as e.g. `⟨U+202E⟩`, and long runs of blanks as e.g. `⟨400 blanks⟩`.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(HIDDEN, code).replace(CONTROLS, code).replace(BLANKS, ({ length }) => `⟨${length} blanks⟩`);
}

/** @param {string} character */
function code(character) {
  return `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
