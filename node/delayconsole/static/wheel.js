"use strict";
// The heat map: uPlot has the axes, the cursor and the selection; the cells are drawn here. For the keyboard and for
// screen readers it is a grid, of which only the cell that has the focus is in the document.
(() => {
  const ROW = 20, MIN_ROWS = 6, PLOT_ROWS = 460;
  const HOUR = 3600, DAY = 24 * HOUR;
  // Seconds between the times below the picture: no less than a minute, which is the least that they show.
  const STEPS_S = [...[1, 2, 5, 10, 15, 30].map((it) => it * 60), ...[1, 2, 3, 4, 6, 8, 12].map((it) => it * HOUR),
    ...[1, 2, 3, 4, 5, 7, 10, 15, 30, 60, 90, 120, 180, 365, 730].map((it) => it * DAY)];
  // From cold to hot, in light and in dark: the lightness rises or falls all the way, so that it is read without colours.
  const LIGHT = ["#e4edfb", "#b9d3f6", "#7fb0ec", "#4a8bd8", "#5b62b8", "#7d3c98", "#b0246f", "#d41f3c", "#8a0f14"];
  const DARK = ["#1b2b45", "#1f4372", "#2065a0", "#2f8fb5", "#4fb58f", "#9bcb5a", "#e3c846", "#f59a3b", "#fff1c9"];
  // active: {name, ms}: the row and the time of the cell that the keyboard is on. frame: is around it.
  let plot = null, data = null, tip = null, frame = null, active = null;

  const dark = () => {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (count) => Math.round(count).toLocaleString("en");

  const read = () => JSON.parse(document.getElementById("picture").textContent);

  const at = (u, left, top) => {
    const ms = u.posToVal(left, "x") * 1000, y = u.posToVal(top, "y");
    const column = data.edges.findIndex((edge, i) => edge <= ms && ms < data.edges[i + 1]);
    const row = Math.floor(data.rows.length - y);
    return column >= 0 && row >= 0 && row < data.rows.length ? { column, row } : null;
  };

  const drawCells = (u) => {
    const ramp = dark() ? DARK : LIGHT, hottest = Math.max(1, ...data.cells.map((row) => Math.max(...row)));
    const context = u.ctx;
    context.save();
    context.beginPath();
    context.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    context.clip();
    data.cells.forEach((row, number) => {
      const top = u.valToPos(data.rows.length - number, "y", true);
      const bottom = u.valToPos(data.rows.length - number - 1, "y", true);
      const gap = bottom - top > 6 ? 1 : 0;
      row.forEach((count, column) => {
        if (count <= 0) return;
        const left = u.valToPos(data.edges[column] / 1000, "x", true);
        const right = u.valToPos(data.edges[column + 1] / 1000, "x", true);
        // A root, so that what is there at all can be seen beside a herd.
        context.fillStyle = ramp[Math.round(Math.sqrt(count / hottest) * (ramp.length - 1))];
        context.fillRect(left, top + gap, Math.max(1, right - left - (right - left > 5 ? 1 : 0)), bottom - top - gap);
      });
    });
    context.restore();
  };

  const text = ({ column, row }) => `${data.rows[row]} · ${consoleLook.shown(data.edges[column], 16)} · ` +
    `${number(data.cells[row][column])} messages of ${number(data.total[column])}`;

  const tell = (u, cell, left, top) => {
    tip.hidden = !cell;
    if (!cell) return;
    tip.textContent = text(cell);
    const flip = left > u.over.clientWidth / 2;
    tip.style.left = `${left + (flip ? -12 - tip.offsetWidth : 12)}px`;
    tip.style.top = `${Math.min(top + 14, u.over.clientHeight - tip.offsetHeight)}px`;
  };

  const showTip = (u) => {
    const { left, top } = u.cursor, cell = left >= 0 ? at(u, left, top) : null;
    if (cell || !frame || frame.hidden) tell(u, cell, left, top); else showActive();
  };

  const hottest = () => {
    let found = { row: 0, column: 0 };
    data.cells.forEach((cells, row) => cells.forEach((count, column) => {
      if (count > data.cells[found.row][found.column]) found = { row, column };
    }));
    return found;
  };

  // Where the keyboard is, also after the picture has moved on: its row and time, or what is hottest.
  const activeCell = () => {
    const row = data.rows.indexOf(active?.name);
    const column = data.edges.findIndex((edge, i) => edge <= active?.ms && active?.ms < data.edges[i + 1]);
    return row >= 0 && column >= 0 ? { row, column } : hottest();
  };

  const element = (role, column, words) => {
    const made = document.createElement("span");
    made.setAttribute("role", role);
    made.setAttribute("aria-colindex", column);
    made.textContent = words;
    return made;
  };

  const showActive = () => {
    const grid = document.getElementById("cells");
    grid.hidden = !data.rows.length;
    if (grid.hidden) { frame.hidden = true; return; }
    const cell = activeCell(), { row, column } = cell;
    grid.setAttribute("aria-rowcount", data.rows.length);
    grid.setAttribute("aria-colcount", data.edges.length);
    const line = document.createElement("span"), one = element("gridcell", column + 2, text(cell));
    line.setAttribute("role", "row");
    line.setAttribute("aria-rowindex", row + 1);
    line.append(element("rowheader", 1, data.rows[row]), one);
    one.id = `cell-${row}-${column}`;
    if (grid.firstChild?.textContent !== line.textContent) grid.replaceChildren(line);
    grid.setAttribute("aria-activedescendant", one.id);
    const [left, right] = [column, column + 1].map((at) => plot.valToPos(data.edges[at] / 1000, "x"));
    const [top, bottom] = [row, row + 1].map((at) => plot.valToPos(data.rows.length - at, "y"));
    frame.hidden = document.activeElement !== grid;
    Object.assign(frame.style, { left: `${left - 2}px`, top: `${top - 1}px`, width: `${Math.max(3, right - left) + 3}px`,
      height: `${bottom - top + 3}px` });
    tell(plot, frame.hidden ? null : cell, right, bottom - 10);
  };

  const go = (from, to) => {
    const url = new URL(location.href);
    url.searchParams.delete("span");
    url.searchParams.set("from", String(Math.floor(from / 60000) * 60000));
    url.searchParams.set("to", String(Math.ceil(to / 60000) * 60000));
    location.assign(url);
  };

  const open = (cell) => {
    if (!data.links[cell.row]) return;
    const url = new URL(data.links[cell.row], location.href);
    url.searchParams.set("from", data.edges[cell.column]);
    url.searchParams.set("to", data.edges[cell.column + 1]);
    location.assign(url);
  };

  // The time; the date below it where a day begins, or alone where a step is a day.
  const dates = (u, splits) => {
    let before = "";
    return splits.map((seconds) => {
      const [date, time] = consoleLook.shown(seconds * 1000, 16).split(" "), day = date.slice(5);
      const text = time.startsWith("00:00") ? day : time.slice(0, 5);
      if (!before && text === day) { before = date; return date; }
      const line = before && before !== date && text !== day ? `\n${day}` : before ? "" : `\n${date}`;
      before = date;
      return text + line;
    });
  };

  const draw = () => {
    const place = document.getElementById("plot");
    data = read();
    plot?.destroy();
    const rows = data.rows.length, height = Math.min(PLOT_ROWS, Math.max(MIN_ROWS, rows) * ROW) + 50;
    const label = Math.min(220, 20 + 7.2 * Math.max(6, ...data.rows.map((name) => name.length)));
    const every = Math.ceil((rows * 14) / (height - 50));
    const axis = { stroke: colour("--soft"), grid: { show: false }, ticks: { stroke: colour("--line"), size: 4 },
      font: "12px system-ui, sans-serif" };
    plot = new uPlot({
      width: place.clientWidth, height, legend: { show: false }, padding: [8, 40, 0, 0],
      tzDate: (s) => (consoleLook.zone() === "utc" ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000)),
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 6 } },
      scales: { x: { time: true, range: () => [data.edges[0] / 1000, data.edges.at(-1) / 1000] },
        y: { range: () => [0, Math.max(1, rows)] } },
      axes: [{ ...axis, space: 70, incrs: STEPS_S, values: dates }, { ...axis, size: label, splits: () => data.rows.map((_, i) => rows - i - 0.5),
        values: () => data.rows.map((name, i) => (i % every ? "" : name.length > 28 ? `${name.slice(0, 27)}…` : name)) }],
      series: [{}, { show: true, stroke: "transparent", paths: () => null, points: { show: false } }],
      hooks: { drawSeries: [drawCells], setCursor: [showTip], setSelect: [(u) => {
        if (u.select.width > 6)
          go(u.posToVal(u.select.left, "x") * 1000, u.posToVal(u.select.left + u.select.width, "x") * 1000);
      }] },
    }, [data.edges.slice(0, -1).map((ms) => ms / 1000), data.total], place);
    tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    frame = document.createElement("div");
    frame.className = "frame";
    plot.over.append(frame, tip);
    let pressed = null;
    plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    plot.over.addEventListener("click", (event) => {
      const cell = at(plot, plot.cursor.left, plot.cursor.top);
      if (cell && pressed !== null && Math.abs(event.clientX - pressed) < 6) open(cell);
    });
    showActive();
  };

  const redraw = () => {
    if (!document.getElementById("plot")) return;
    const now = read();
    const same = plot && now.rows.join("\n") === data.rows.join("\n");
    data = now;
    if (!same) return draw();
    plot.setData([data.edges.slice(0, -1).map((ms) => ms / 1000), data.total]);
    showActive();
  };

  const ZOOMS = { "+": "Zoom in", "=": "Zoom in", "-": "Zoom out" };
  const TIMES = { ArrowLeft: "Earlier", ArrowRight: "Later" };
  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  // As grids have it: a focus does not leave the grid at its edges.
  const moved = ({ row, column }, { key, ctrlKey }) => {
    const rows = data.rows.length - 1, columns = data.edges.length - 2;
    if (key === "Home") return { row: ctrlKey ? 0 : row, column: 0 };
    if (key === "End") return { row: ctrlKey ? rows : row, column: columns };
    if (ctrlKey || !STEPS[key]) return null;
    const [down, right] = STEPS[key];
    return { row: Math.min(rows, Math.max(0, row + down)), column: Math.min(columns, Math.max(0, column + right)) };
  };

  const onKey = (event) => {
    if (event.metaKey || event.altKey) return;
    const cell = activeCell(), to = ZOOMS[event.key] ?? (event.shiftKey ? TIMES[event.key] : undefined);
    const link = event.ctrlKey || !to ? null : document.querySelector(`[data-move="${to}"]`);
    const next = link ? null : moved(cell, event);
    if (link) location.assign(`${link.href}#cells`);  // there the keyboard is on the picture again
    else if (next) { active = { name: data.rows[next.row], ms: data.edges[next.column] }; showActive(); }
    else if (event.key === "Enter" && !event.ctrlKey) open(cell);
    else return;
    event.preventDefault();
  };

  document.addEventListener("DOMContentLoaded", () => {
    const grid = document.getElementById("cells");
    draw();
    if (location.hash === "#cells") grid.focus({ preventScroll: true });
    grid.addEventListener("keydown", onKey);
    grid.addEventListener("focus", showActive);
    grid.addEventListener("blur", showActive);
  });
  document.addEventListener("console:look", () => plot && draw());
  document.addEventListener("htmx:after:swap", redraw);
  addEventListener("resize", () => plot && draw());
})();
