/**
 * What more than one view uses. The page and every view import this module, so that the build puts all of it into one file: otherwise
 * each set of views that share a module would have a file of its own.
 */

import "./announce.js";
import "./approval-card.js";
import "./changes.js";
import "./client.js";
import "./code.js";
import "./decisions.js";
import "./dialog.js";
import "./diff.js";
import "./errors.js";
import "./format.js";
import "./highlight.js";
import "./long.js";
import "./pages.js";
import "./resource.js";
import "./rich.js";
import "./router.js";
import "./sanitize.js";
import "./session-link.js";
import "./tree.js";
import "./visible.js";
