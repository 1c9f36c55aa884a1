"use strict";
// The heat map: uPlot has the axes, the cursor and the selection; the cells are drawn here.
(() => {
  const ROW = 20, MIN_ROWS = 6, PLOT_ROWS = 460;
  // From cold to hot, in light and in dark: the lightness rises or falls all the way, so that it is read without colours.
  const LIGHT = ["#e4edfb", "#b9d3f6", "#7fb0ec", "#4a8bd8", "#5b62b8", "#7d3c98", "#b0246f", "#d41f3c", "#8a0f14"];
  const DARK = ["#1b2b45", "#1f4372", "#2065a0", "#2f8fb5", "#4fb58f", "#9bcb5a", "#e3c846", "#f59a3b", "#fff1c9"];
  let plot = null, data = null, tip = null;

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

  const showTip = (u) => {
    const { left, top } = u.cursor, cell = left >= 0 ? at(u, left, top) : null;
    tip.hidden = !cell;
    if (!cell) return;
    const { column, row } = cell;
    tip.textContent = `${data.rows[row]} · ${consoleLook.shown(data.edges[column], 16)} · ` +
      `${number(data.cells[row][column])} messages of ${number(data.total[column])}`;
    const flip = left > u.over.clientWidth / 2;
    tip.style.left = `${left + (flip ? -12 - tip.offsetWidth : 12)}px`;
    tip.style.top = `${Math.min(top + 14, u.over.clientHeight - tip.offsetHeight)}px`;
  };

  const go = (from, to) => {
    const url = new URL(location.href);
    url.searchParams.delete("span");
    url.searchParams.set("from", String(Math.floor(from / 60000) * 60000));
    url.searchParams.set("to", String(Math.ceil(to / 60000) * 60000));
    location.assign(url);
  };

  const open = (cell) => {
    const name = data.rows[cell.row], url = new URL("/pending", location.href);
    const shard = data.by === "shard" ? name.match(/^(.*)-(\d+)$/) : null;
    const topic = new URL(location.href).searchParams.get("topic");
    if (shard) { url.searchParams.set("topic", shard[1]); url.searchParams.set("queue", shard[2]); }
    else if (data.by === "topic") url.searchParams.set("topic", name);
    else if (topic) url.searchParams.set("topic", topic);
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
      const line = before && before !== date && text !== day ? `\n${day}` : before ? "" : `\n${date}`;
      before = date;
      return text + line;
    });
  };

  const draw = () => {
    const place = document.getElementById("plot");
    data = read();
    plot?.destroy();
    place.replaceChildren();
    const rows = data.rows.length, height = Math.min(PLOT_ROWS, Math.max(MIN_ROWS, rows) * ROW) + 50;
    const label = Math.min(220, 20 + 7.2 * Math.max(6, ...data.rows.map((name) => name.length)));
    const every = Math.ceil((rows * 14) / (height - 50));
    const axis = { stroke: colour("--soft"), grid: { show: false }, ticks: { stroke: colour("--line"), size: 4 },
      font: "12px system-ui, sans-serif" };
    plot = new uPlot({
      width: place.clientWidth, height, legend: { show: false }, padding: [8, 20, 0, 0],
      tzDate: (s) => (consoleLook.zone() === "utc" ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000)),
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 6 } },
      scales: { x: { time: true, range: () => [data.edges[0] / 1000, data.edges.at(-1) / 1000] },
        y: { range: () => [0, Math.max(1, rows)] } },
      axes: [{ ...axis, space: 70, values: dates }, { ...axis, size: label, splits: () => data.rows.map((_, i) => rows - i - 0.5),
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
    plot.over.append(tip);
    let pressed = null;
    plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    plot.over.addEventListener("click", (event) => {
      const cell = at(plot, plot.cursor.left, plot.cursor.top);
      if (cell && pressed !== null && Math.abs(event.clientX - pressed) < 6) open(cell);
    });
  };

  const redraw = () => {
    if (!document.getElementById("plot")) return;
    const now = read();
    const same = plot && now.rows.join("\n") === data.rows.join("\n");
    data = now;
    if (same) plot.setData([data.edges.slice(0, -1).map((ms) => ms / 1000), data.total]); else draw();
  };

  const KEYS = { ArrowLeft: "Earlier", ArrowRight: "Later", "+": "Zoom in", "=": "Zoom in", "-": "Zoom out" };
  document.addEventListener("DOMContentLoaded", () => {
    draw();
    document.getElementById("plot").addEventListener("keydown", (event) => {
      const link = KEYS[event.key] && document.querySelector(`[data-move="${KEYS[event.key]}"]`);
      if (link && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); link.click(); }
    });
  });
  document.addEventListener("console:look", () => plot && draw());
  document.addEventListener("htmx:after:swap", redraw);
  addEventListener("resize", () => plot && draw());
})();
