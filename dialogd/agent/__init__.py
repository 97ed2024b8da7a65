"""One agent at one dialog. Start reading in `loop.py`; `turn.py` follows one turn from the debt to the append."""
