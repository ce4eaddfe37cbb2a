// Looking around: one view for all panels.
//
// 1. A view maps a point of the layout to the screen: screen = scale * point + (x, y).
// 2. fit shows everything; zoomAt keeps a point where it is; centreOn brings a box to the middle.
// 3. hit finds what lies under a point: a box, or the nearest link, without any index, since a
//    link's place at a height is a short sum.

function fitView(layout, width, height) {
  const { margin } = layout;
  const wide = layout.width + margin.left + margin.right;
  const high = layout.height + margin.top + margin.bottom;
  const scale = Math.min(width / wide, height / high, 1.4);
  return {
    scale,
    x: (width - scale * wide) / 2 + scale * margin.left,
    y: (height - scale * high) / 2 + scale * margin.top,
    fitted: true,
  };
}

function zoomAt(view, factor, x, y) {
  const scale = Math.min(8, Math.max(0.05, view.scale * factor));
  const grown = scale / view.scale;
  return { scale, x: x - grown * (x - view.x), y: y - grown * (y - view.y), fitted: false };
}

/** A view with the cell in the middle, if it is not well inside already. */
function centreOn(view, cell, width, height) {
  const x = view.scale * (cell.x + cell.w / 2) + view.x;
  const y = view.scale * (cell.y + cell.h / 2) + view.y;
  if (x > 40 && x < width - 40 && y > 30 && y < height - 30) return view;
  return { ...view, x: view.x + width / 2 - x, y: view.y + height / 2 - y, fitted: false };
}

/** { component } or { edge, link } under a point of the screen, or null. */
function hit(scene, panel, view, screenX, screenY) {
  const x = (screenX - view.x) / view.scale;
  const y = (screenY - view.y) / view.scale;
  for (const cell of scene.cells) {
    const inside = x >= cell.x && x <= cell.x + cell.w && y >= cell.y && y <= cell.y + cell.h;
    if (inside) return cell.component < 0 ? { stub: cell } : { component: cell.component };
  }
  const xOf = crossing(scene.layout, scene.routes, y);
  let best = null;
  let least = 6 / view.scale;
  for (const link of panel.shown) { // from the strongest, so of equals it wins
    const distance = Math.abs(xOf(link) - x);
    if (distance < least - 0.01) {
      least = distance;
      best = link;
    }
  }
  return best === null ? null : { edge: scene.links.edge[best], link: best };
}

/** The component next to another in a direction: in its row, or nearest in the next row. */
function neighbour(scene, component, direction) {
  const own = scene.routes.cells[component];
  if (!own) return 0;
  if (direction === "left" || direction === "right") {
    const row = scene.layout.rows[own.row].cells;
    const at = row.indexOf(own) + (direction === "left" ? -1 : 1);
    return row[Math.min(row.length - 1, Math.max(0, at))].component;
  }
  const row = scene.layout.rows[own.row + (direction === "up" ? 1 : -1)]?.cells;
  if (!row) return component;
  const middle = own.x + own.w / 2;
  const away = (cell) => Math.abs(cell.x + cell.w / 2 - middle);
  return row.reduce((a, b) => (away(b) < away(a) ? b : a)).component;
}
