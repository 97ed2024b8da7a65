"""The plan that a dialog leaves: what was decided, by whom, against whose word, and what is still open.

`make.draw_up` reads it from a dialog, `page.markdown` and `facts.as_json` write it; `keep.keep` puts both beside the
dialog. Pure but for `keep` and `synthesis`.
"""
