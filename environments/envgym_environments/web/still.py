"""What makes two pictures of one page equal: nothing blinks, nothing moves, nothing is painted by chance."""

__all__ = ["STILL"]

STILL = """addEventListener('DOMContentLoaded', () => { const style = document.createElement('style');
  style.textContent = `* { caret-color: transparent !important; transition: none !important;
    animation: none !important; border-radius: 0 !important; box-shadow: none !important }`;
  document.head.append(style); })"""
"""A script of `PageSpec.scripts`. No round corners: their pixels Chromium does not paint the same every time."""
