"""The showcase of decoding: a GPT that is trained here and generates text in one native loop. To
read in this order: `model.py`, `corpus.py`, `training.py`, `storing.py`, `sampling.py`; then how it
is measured: `in_torch.py`, `measuring.py`, `command.py`."""
