// SPDX-License-Identifier: Apache-2.0
// A page opened from disk may not start the Worker of Material's search: a hidden frame runs it.
if (location.protocol === "file:")
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const answer = "postMessage = (data) => frameElement.answer(data)";
      this.frame.srcdoc = `<script>${answer}</script><script src="${url}"></script>`;
      this.ready = new Promise((resolve) => (this.frame.onload = resolve));
      document.body.append(this.frame);
    }
    async postMessage(data) {
      await this.ready;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
