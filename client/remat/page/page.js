"use strict";
(() => {
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
  const axis = (label, values, size) => ({
    label, size, stroke: css("--quiet"), values: (_, ticks) => ticks.map(values),
    grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 },
  });

  // Tick marks at binary multiples read as round numbers of MiB; decimal ones do not.
  const binaryTicks = (_, __, low, high) => {
    const raw = (high - low) / 6, unit = 2 ** (10 * Math.floor(Math.log2(Math.max(raw, 1)) / 10));
    const step = unit * [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((multiple) => multiple * unit >= raw);
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
    return ticks;
  };

  const drawTimelines = (place, timelines) => {
    const tables = timelines.map((line) => [line.start_ms, line.in_use_bytes]);
    const budgets = timelines.map((line) => line.budget_bytes);
    const drawBudgets = (chart) => {
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
    return new uPlot({
      width: place.clientWidth, height: HEIGHT,
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.05] } },
      axes: [axis("compute time (ms)", (tick) => tick, 50), { ...axis("memory in use", bytes, 80), splits: binaryTicks }],
      series: [
        { label: "ms", value: (_, value) => (value == null ? "–" : value.toFixed(2)) },
        ...timelines.map((line, index) => ({
          label: line.label, stroke: COLOURS[index % COLOURS.length], width: index ? 1.5 : 1, spanGaps: true,
          paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: (_, value) => bytes(value),
        })),
      ],
      hooks: { draw: [drawBudgets] },
    }, uPlot.join(tables), place);
  };

  const drawFrontier = (place, frontier) => {
    const data = [
      frontier.map((point) => point.peak_bytes),
      frontier.map((point) => point.overhead),
      frontier.map((point) => point.bound_overhead),
    ];
    return new uPlot({
      width: place.clientWidth, height: HEIGHT,
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high, 0.01) * 1.08] } },
      axes: [{ ...axis("peak", bytes, 50), splits: binaryTicks }, axis("compute overhead", percent, 70)],
      series: [
        { label: "peak", value: (_, value) => bytes(value) },
        { label: "plan", stroke: COLOURS[1], width: 2, points: { show: true, size: 7 }, value: (_, value) => percent(value) },
        { label: "lower bound", stroke: COLOURS[0], dash: [6, 5], points: { show: false }, value: (_, value) => percent(value) },
      ],
    }, data, place);
  };

  const DRAW = { timelines: drawTimelines, frontier: drawFrontier };
  for (const section of document.querySelectorAll("[data-section]")) {
    const data = JSON.parse(section.querySelector("script[type='application/json']").textContent);
    for (const place of section.querySelectorAll("[data-chart]")) {
      const kind = place.dataset.chart;
      const chart = DRAW[kind](place, data[kind]);
      new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    }
  }
})();
