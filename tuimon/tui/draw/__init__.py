"""From figures to rows of styled text: no widget, no clock."""
