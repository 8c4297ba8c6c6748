interface Highlighter {
  /** Return HTML: text and `span` elements with classes. */
  highlight(code: string, options: { language: string; ignoreIllegals?: boolean }): { value: string };
  getLanguage(name: string): { name?: string } | undefined;
}
declare const highlighter: Highlighter;
export default highlighter;
