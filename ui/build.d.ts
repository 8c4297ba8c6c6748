/** The file of the thread that highlights code, whose name contains a hash: local/page_build.py writes it in place of this name. */
declare const HIGHLIGHT_WORKER: string;
