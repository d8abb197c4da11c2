"""Draws a terminal's screen as SVG, for a README."""
import html

CHARACTER, LINE = 7.8, 17  # width and height in pixels, of a font of 13 pixels
COLORS = {"background": "#1b1f24", "text": "#d6dde4", "marked": "#3b4754"}


def svg(screens):
    """`screens` are pyte's screens, one below the other."""
    width = max(screen.columns for screen in screens) * CHARACTER + 2 * LINE
    rows = []
    for screen in screens:
        used = [y for y in range(screen.lines) if screen.display[y].strip()]
        rows += [screen.buffer[y] for y in range(max(used, default=-1) + 1)]
        rows.append({})
    rows.pop()
    height = len(rows) * LINE + LINE
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="DejaVu Sans Mono, monospace" font-size="13">',
           f'<rect width="100%" height="100%" rx="6" fill="{COLORS["background"]}"/>']
    for y, row in enumerate(rows):
        top = LINE / 2 + y * LINE
        marked = [x for x, cell in row.items() if cell.reverse] if row else []
        if marked:
            out.append(f'<rect x="{LINE + min(marked) * CHARACTER:.1f}" y="{top:.1f}" width="{(max(marked) - min(marked) + 1) * CHARACTER:.1f}" '
                       f'height="{LINE}" fill="{COLORS["marked"]}"/>')
        text = "".join(row[x].data for x in range(max(row, default=-1) + 1)) if row else ""
        if text.strip():
            weight = ' font-weight="bold"' if any(cell.bold for cell in row.values()) else ""
            out.append(f'<text x="{LINE}" y="{top + 13:.1f}" fill="{COLORS["text"]}"{weight} xml:space="preserve" '
                       f'textLength="{len(text.rstrip()) * CHARACTER:.1f}">{html.escape(text.rstrip())}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"
