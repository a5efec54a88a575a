"""The look of the page: a calm theme on gradio's own tokens, in light and dark."""

from __future__ import annotations

import gradio as gr

# Fonts of the reader's own system: nothing to download, and every script is covered.
SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


def theme() -> gr.themes.Base:
    """The same colours as `static/stage.css`, for gradio's components."""
    made = gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        secondary_hue=gr.themes.colors.orange,
        neutral_hue=gr.themes.colors.slate,
        font=SANS,
        font_mono=MONO,
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_md,
    )
    light = {
        "body_background_fill": "#f4f6f9",
        "body_text_color": "#16212e",
        "body_text_color_subdued": "#4b5b6c",
        "background_fill_primary": "#ffffff",
        "background_fill_secondary": "#f4f6f9",
        "block_title_text_color": "#16212e",
        "block_info_text_color": "#4b5b6c",
        "border_color_primary": "#dde3ea",
        "input_background_fill": "#ffffff",
        "input_border_color": "#8593a3",
        "input_placeholder_color": "#5d6b7a",
        "button_primary_background_fill": "#0f4686",
        "button_primary_background_fill_hover": "#0b3566",
        "button_primary_text_color": "#ffffff",
        "button_secondary_background_fill": "#ffffff",
        "button_secondary_background_fill_hover": "#e8edf3",
        "button_secondary_border_color": "#8593a3",
        "button_secondary_text_color": "#16212e",
        "button_cancel_background_fill": "#a3160c",
        "button_cancel_background_fill_hover": "#851008",
        "button_cancel_text_color": "#ffffff",
        "slider_color": "#0f4686",
        "checkbox_border_color": "#8593a3",
        "checkbox_border_color_hover": "#4b5b6c",
        "checkbox_background_color_selected": "#0f4686",
        "checkbox_border_color_selected": "#0f4686",
    }
    dark = {
        "body_background_fill": "#0f141b",
        "body_text_color": "#e9eef4",
        "body_text_color_subdued": "#a8b5c3",
        "background_fill_primary": "#151b23",
        "background_fill_secondary": "#0f141b",
        "block_title_text_color": "#e9eef4",
        "block_info_text_color": "#a8b5c3",
        "border_color_primary": "#2a3440",
        "input_background_fill": "#0f141b",
        "input_border_color": "#728295",
        "input_placeholder_color": "#8b99a8",
        "button_primary_background_fill": "#8bbdec",
        "button_primary_background_fill_hover": "#b0d4f5",
        "button_primary_text_color": "#0b131d",
        "button_secondary_background_fill": "#151b23",
        "button_secondary_background_fill_hover": "#222b36",
        "button_secondary_border_color": "#728295",
        "button_secondary_text_color": "#e9eef4",
        "button_cancel_background_fill": "#ffb3a8",
        "button_cancel_background_fill_hover": "#ffd0c9",
        "button_cancel_text_color": "#34191a",
        "slider_color": "#8bbdec",
        "checkbox_border_color": "#728295",
        "checkbox_border_color_hover": "#a8b5c3",
        "checkbox_background_color_selected": "#8bbdec",
        "checkbox_border_color_selected": "#8bbdec",
    }
    return made.set(
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_shadow_dark="none",
        block_padding="0px",
        block_title_text_weight="600",
        input_border_width="1px",
        **light,
        **{f"{name}_dark": colour for name, colour in dark.items()},
    )
