"""The web page of the decoding playground."""
