"use strict";
const slider = document.getElementById("turn");
const tokens = [...document.querySelectorAll("pre span")].map((span) => ({
  span,
  state: span.dataset.state,
  born: Number(span.dataset.turn),
  /* Without a turn of death a token lives; a dead one whose turn is unknown has 0. */
  died: "died" in span.dataset ? Number(span.dataset.died) : Infinity,
}));
const turns = document.body.dataset.turns.split(" ").map(Number);
const last = turns[turns.length - 1];
/* Rows that were given up were there after every turn, and are not now: one more stop of the slider. */
const NOW = Number.MAX_SAFE_INTEGER;
const givenUp = "givenUp" in document.body.dataset;
if (givenUp) turns.push(NOW);

function show(turn) {
  const counts = { live: 0, shared: 0, protected: 0, sink: 0, dead: 0, pending: 0 };
  const gone = givenUp && turn === NOW;
  for (const token of tokens) {
    const later = token.born > turn;
    const dead = !later && turn >= token.died;
    token.span.classList.toggle("later", later);
    token.span.classList.toggle("dead", dead);
    if (givenUp && token.state !== "pending") token.span.classList.toggle("pending", gone && !dead);
    if (!later) counts[dead ? "dead" : gone ? "pending" : token.state] += 1;
  }
  for (const section of document.querySelectorAll("section"))
    section.classList.toggle("later", Number(section.dataset.turn) > turn);
  for (const event of document.querySelectorAll(".events li"))
    event.classList.toggle("now", Number(event.dataset.turn) === turn);
  for (const [state, count] of Object.entries(counts)) {
    document.getElementById("count-" + state).textContent = count;
    document.getElementById("bar-" + state).style.width = (100 * count) / Math.max(1, tokens.length) + "%";
  }
  document.getElementById("shown").textContent = turn === NOW ? "now" : "after turn " + turn + " of " + last;
}

slider.addEventListener("input", () => show(turns[Number(slider.value)]));
