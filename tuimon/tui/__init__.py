"""The screen: the only package that imports Textual. It reads frames and sends typed commands."""
