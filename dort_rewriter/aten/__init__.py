"""What an ATen graph says about its values: aliases, layouts, random operators."""
