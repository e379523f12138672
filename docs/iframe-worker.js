// SPDX-License-Identifier: Apache-2.0
// Browsers start no Worker of a page opened from disk. There the search runs in a hidden frame.
// Material looks for the name IFrameWorker, and for that of this file before it links to another.
if (location.protocol === "file:")
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const answer = "<script>postMessage = (data) => frameElement.answer(data)</script>";
      this.frame.srcdoc = `${answer}<script src="${url}"></script>`;
      this.ready = new Promise((resolve) => (this.frame.onload = resolve));
      document.body.append(this.frame);
    }
    async postMessage(data) {
      await this.ready;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
