"use strict";
// Draws every element with `data-chart` from the JSON of the element that its `data-source` names.
// rematCharts.draw(root) may be called again: a chart that is drawn already takes the new figures.
const rematCharts = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const COLOURS = ["#8a93a3", "#2f6fed", "#e07a1f", "#2a9d63", "#b445c7", "#c9372c"];
  const HEIGHT = 300;

  const bytes = (amount) => {
    if (amount == null) return "–";
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
      if (Math.abs(amount) >= size) return `${+(amount / size).toPrecision(4)} ${unit}`;
    return `${amount} B`;
  };
  const percent = (share) => (share == null ? "–" : `${+(share * 100).toFixed(2)}%`);
  const plain = (value) => (value == null ? "–" : value);
  const axis = (label, values, size) => ({
    label, size, stroke: css("--quiet"), values: (_, ticks) => ticks.map(values),
    grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 },
  });
  const dots = (label, colour, size) => ({
    label, stroke: colour, paths: () => null, points: { show: true, size, width: 0, fill: colour }, value: (_, value) => plain(value),
  });

  // Tick marks at binary multiples read as round numbers of MiB; decimal ones do not.
  const binaryTicks = (_, __, low, high) => {
    const raw = (high - low) / 6, unit = 2 ** (10 * Math.floor(Math.log2(Math.max(raw, 1)) / 10));
    const step = unit * [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024].find((multiple) => multiple * unit >= raw);
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
    return ticks;
  };

  const drawBudgets = (budgets) => (chart) => {
    const context = chart.ctx;
    context.save();
    context.setLineDash([6, 5]);
    budgets.forEach((budget, index) => {
      if (budget == null || !chart.series[index + 1].show) return;
      const y = chart.valToPos(budget, "y", true);
      context.strokeStyle = COLOURS[index % COLOURS.length];
      context.beginPath();
      context.moveTo(chart.bbox.left, y);
      context.lineTo(chart.bbox.left + chart.bbox.width, y);
      context.stroke();
    });
    context.restore();
  };

  const timelines = {
    data: (lines) => uPlot.join(lines.map((line) => [line.start_ms, line.in_use_bytes])),
    options: (lines) => {
      const budgets = lines.map((line) => line.budget_bytes);
      const top = Math.max(...budgets.filter((budget) => budget != null), 0);
      return {
        scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high, top) * 1.05] } },
        axes: [axis("compute time (ms)", plain, 50), { ...axis("memory in use", bytes, 80), splits: binaryTicks }],
        series: [
          { label: "ms", value: (_, value) => (value == null ? "–" : value.toFixed(2)) },
          ...lines.map((line, index) => ({
            label: line.label, stroke: COLOURS[index % COLOURS.length], width: index ? 1.5 : 1, spanGaps: true,
            paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: (_, value) => bytes(value),
          })),
        ],
        hooks: { draw: [drawBudgets(budgets)] },
      };
    },
  };

  // A point that carries a `url` leads there when it is clicked.
  const frontier = {
    data: (points) => ["peak_bytes", "overhead", "bound_overhead"].map((field) => points.map((point) => point[field])),
    options: () => ({
      scales: {
        x: { time: false, range: (_, low, high) => (low == null ? [0, 1] : low === high ? [low * 0.9, high * 1.1] : [low, high]) },
        y: { range: (_, low, high) => [0, Math.max(high, 0.01) * 1.08] },
      },
      axes: [{ ...axis("peak", bytes, 50), splits: binaryTicks }, axis("compute overhead", percent, 70)],
      series: [
        { label: "peak", value: (_, value) => bytes(value) },
        { label: "plan", stroke: COLOURS[1], width: 2, points: { show: true, size: 7 }, value: (_, value) => percent(value) },
        { label: "lower bound", stroke: COLOURS[0], dash: [6, 5], points: { show: false }, value: (_, value) => percent(value) },
      ],
    }),
  };

  const matrix = {
    data: (steps) => uPlot.join([[steps.first_steps, steps.first_ops], [steps.again_steps, steps.again_ops]]),
    options: (steps) => {
      const size = steps.first_ops.length > 400 ? 2 : steps.first_ops.length > 100 ? 3.5 : 6;
      return {
        scales: { x: { time: false }, y: { dir: -1, range: (_, low, high) => [low - 0.5, high + 0.5] } },
        axes: [axis("step of the schedule", plain, 50), axis("op", plain, 60)],
        series: [
          { label: "step", value: (_, value) => plain(value) },
          dots("op, first run", COLOURS[1], size),
          dots("op, recomputed", COLOURS[2], size + 1),
        ],
      };
    },
  };

  const progress = {
    data: (reports) => [reports.elapsed_s, reports.incumbent, reports.bound],
    options: () => ({
      scales: { x: { time: false, range: (_, low, high) => [0, high || 1] } },
      axes: [axis("seconds", plain, 50), axis("compute overhead", percent, 70)],
      series: [
        { label: "s", value: (_, value) => (value == null ? "–" : value.toFixed(1)) },
        { label: "best plan", stroke: COLOURS[1], width: 2, paths: uPlot.paths.stepped({ align: 1 }), value: (_, value) => percent(value) },
        { label: "lower bound", stroke: COLOURS[3], width: 2, paths: uPlot.paths.stepped({ align: 1 }), value: (_, value) => percent(value) },
      ],
    }),
  };

  const KINDS = { timelines, frontier, matrix, progress };
  const drawn = new WeakMap();

  const create = (place, kind, figures) => {
    const chart = new uPlot({ width: place.clientWidth, height: HEIGHT, ...kind.options(figures) }, kind.data(figures), place);
    const shown = { chart, figures };
    chart.over.addEventListener("click", () => {
      const point = place.dataset.chart === "frontier" && shown.figures[chart.cursor.idx];
      if (point && point.url) location.assign(point.url);
    });
    new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    return shown;
  };

  const draw = (root) => {
    for (const place of root.querySelectorAll("[data-chart]")) {
      const kind = KINDS[place.dataset.chart];
      const text = document.getElementById(place.dataset.source).textContent;
      const shown = drawn.get(place);
      if (shown && shown.text === text) continue;
      const figures = JSON.parse(text)[place.dataset.chart];
      if (shown) {
        Object.assign(shown, { text, figures });
        shown.chart.setData(kind.data(figures));
      } else {
        drawn.set(place, Object.assign(create(place, kind, figures), { text }));
      }
    }
  };

  draw(document);
  return { draw };
})();
