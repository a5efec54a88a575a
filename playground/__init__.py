"""The web page of the decoding playground."""

from .stubs import unwritten

with unwritten():
    import gradio  # noqa: F401  before anything else does, and at half the time
