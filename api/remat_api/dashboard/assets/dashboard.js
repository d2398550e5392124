"use strict";
// Charts take new figures after each swap; forms ask before they do what can't be undone; filters need no button.
document.addEventListener("htmx:afterSettle", () => rematCharts.draw(document));
document.addEventListener("htmx:oobAfterSwap", () => rematCharts.draw(document));
document.addEventListener("submit", (event) => {
  const question = event.submitter && event.submitter.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
for (const form of document.querySelectorAll("form.filters"))
  form.addEventListener("change", () => form.requestSubmit());
