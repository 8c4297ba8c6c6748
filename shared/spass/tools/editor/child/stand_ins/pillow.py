"""For ``PIL``: Aider measures images and reads them from the clipboard. All files of an edit are text."""

import sys

Image = ImageGrab = sys.modules[__name__]
