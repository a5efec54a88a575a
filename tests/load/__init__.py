"""A whole class on the running app: thirty `gradio_client` users and three browser pages.

    python tests/load [--minutes 5] [--users 30] [--pages 3] [--model tiny|ID]

A module each for what is asked, who asks, the pages, the memory, the crowd as a whole, and what
is made of it.
"""
