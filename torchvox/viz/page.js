// Shared by all pages: the state in words, and the data in the page.
function say(title, text) {
  document.title = title;
  document.getElementById("state").textContent = text;
}

function fail(text) {
  window.torchvox.error = text;
  say("error: " + text, text);
}

const NO_WEBGL = "this browser shows no WebGL2, which the viewer needs: try another browser or "
  + "turn on hardware acceleration";

function bytes(id) {
  const element = document.getElementById(id);
  const text = atob(element.textContent);
  element.remove();
  const made = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) made[i] = text.charCodeAt(i);
  return made;
}

function unpacked(id) {
  return new Response(new Blob([bytes(id)]).stream().pipeThrough(new DecompressionStream("deflate")));
}
