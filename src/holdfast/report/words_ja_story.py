"""Japanese forms of the sentences in which an incident tells what happened. Used by `words`; pure data.

What a rule found stays as the rule words it; what Holdfast did about it, and what it concludes, is said here. A value of
a template is translated in its turn.
"""

# ruff: noqa: E501 - as in `words_ja`

from __future__ import annotations

STORY: dict[str, str] = {
    "Seen: {what}.": "検出: {what}。",
    "This is drill {drill}.": "訓練 {drill} の一部。",
    "Diagnosis: {what} (domain {domain}, {sure}% sure).": "診断: {what}(領域 {domain}、確度 {sure} %)。",
    "Diagnosis, refined: {what} (domain {domain}, {sure}% sure).": "診断(更新): {what}(領域 {domain}、確度 {sure} %)。",
    "fault of {job}: {what}.": "{job} の障害: {what}。",
    "its attempt is being stopped.": "試行を停止中。",
    "nothing moves; stacks of all ranks are taken.": "進行なし。全ランクのスタックを採取。",
    "No stack came from {ranks}.": "{ranks} からスタックを得られなかった。",
    "asked to save a checkpoint and stop within {limit}.": "{limit} 以内にチェックポイントを保存して停止するよう要求。",
    "it did not save and stop in time.": "時間内に保存して停止しなかった。",
    "the launcher did not end its attempt in time.": "ランチャーが時間内に試行を終えなかった。",
    "the controller takes over: {why}.": "コントローラーが引き継ぐ: {why}。",
    "nothing was started within {limit}.": "{limit} 以内に何も開始されなかった。",
    "restarting in place ({n} since the last progress).": "その場で再起動(最後の進捗から {n} 回目)。",
    "stopped and requeued, held: {why}.": "停止し、保留状態で再投入: {why}。",
    "left alone: {why}.": "手を加えない: {why}。",
    "leaves its allocation with exit code {code}: {why}.": "終了コード {code} で割り当てを離れる: {why}。",
    "held by {who}; it is not released before they say so.": "{who} が保留中。指示があるまで解放しない。",
    "a person holds it in the queue; it waits for them.": "人がキューで保留中。指示を待つ。",
    "waiting for a person to approve.": "人の承認待ち。",
    "waiting for a person to approve: {what}.": "人の承認待ち: {what}。",
    "waiting for a person to approve its quarantine.": "隔離について人の承認待ち。",
    "waits for nodes ({why}).": "ノード待ち({why})。",
    "it may use {nodes} again.": "{nodes} を再び使用可。",
    "released.": "解放。", "released without {nodes}.": "{nodes} を除いて解放。",
    "{job} is started on {nodes}.": "{nodes} で {job} を開始。", "{job} is started.": "{job} を開始。",
    "recovered: {why}.": "復旧: {why}。",
    "its first durable checkpoint after the restart is step {step}": "再起動後最初の永続化済みチェックポイントはステップ {step}",
    "it has run for {time} with no new fault; it reports no progress": "{time} の間、新たな障害なしに稼働(進捗の報告なし)",
    "Closed after {took}: {outcome}.": "{took}で終結: {outcome}。",
    "Closed after {took}: {outcome}. {n} steps had to be done again.": "{took}で終結: {outcome}。{n} ステップを再計算。",
    "quarantined.": "隔離した。",
    "not quarantined: the brake of its group holds it back.": "隔離せず: グループのブレーキが止めている。",
    "it could not be quarantined: {why}.": "隔離できなかった: {why}。",
    "it takes no new work.": "新しいジョブを受け付けない。",
    "repair by {kind} begins.": "修理を開始: {kind}。",
    "repaired; its checks begin.": "修理済み。検査を開始。",
    "{why}; its checks begin.": "{why}。検査を開始。",
    "{why}; policy asks for no check.": "{why}。ポリシーは検査を求めない。",
    "it passed its checks.": "検査に合格。",
    "it takes work again.": "再びジョブを受け付ける。",
    "it has failed before, so it is held back for {time}.": "以前にも故障したため {time} 控えさせる。",
    "it could not be returned: {why}. Whoever drained it decides.": "復帰できなかった: {why}。ドレインした人が決める。",
    "{order} could not be carried out: {why}.": "{order} を実行できなかった: {why}。",
    "replace": "交換", "reboot": "再起動", "reset gpu": "GPUリセット",
    "given up": "断念", "recovered": "復旧", "cancelled": "取消",
}  # fmt: skip
"""One line of a story, without its clock and its subject."""

PHRASES: dict[str, str] = {
    r", on (\S+), rank (\d+)(?=[.。]|: |$)": r"、\1、ランク \2",
    r": a hardware fault\.": "。ハードウェアの障害。",
    r": a network fault\.": "。ネットワークの障害。",
    r": a storage fault\.": "。ストレージの障害。",
    r": a fault of the platform\.": "。基盤の障害。",
    r": an error of the program\.": "。プログラムの誤り。",
    r": a person's doing\.": "。人の操作。",
    r": hardware or program, this alone does not tell\.": "。ハードウェアかプログラムかは、これだけでは分からない。",
    r" It was seen (\d+) times and counts as one\.": r"\1 回見られ、一件と数える。",
    r" (\d+) further findings? on (\d+) other ranks? within ([\d.]+ s) followed from it \((.+?)\)\.": r"\3 以内に他の \2 ランクで続いた検出 \1 件(\4)はこれによる。",
    r" (\d+) further findings? on (\d+) other ranks? followed from it \((.+?)\)\.": r"他の \2 ランクで続いた検出 \1 件(\3)はこれによる。",
    r" (\d+) further findings? within ([\d.]+ s) followed from it \((.+?)\)\.": r"\2 以内に続いた検出 \1 件(\3)はこれによる。",
    r" (\d+) further findings? followed from it \((.+?)\)\.": r"続いた検出 \1 件(\2)はこれによる。",
    r" The time-outs are charged to what happened when their wait began\.": "タイムアウトは、待ちが始まった時の出来事による。",
    r" (\d+) earlier errors? (?:was|were) survived: progress came after\.": r"先立つ \1 件の誤りの後には進捗があった。",
    r" Not explained by it: (.+?)\.(?= |$)": r"これでは説明できないもの: \1。",
    r" Printed near the end and never while the job was well: (.+?)\.(?= |$)": r"正常時には一度もなく、終わり近くに出力された行: \1。",
    r" A restart alone would meet the same error again\.": "再起動だけでは同じ誤りに至る。",
    r" Whether a restart helps cannot be told from this\.": "再起動で直るかは、これだけでは分からない。",
    r" A restart helps when it leaves out (.+?)\.(?= |$)": r"\1 を除けば再起動で直る。",
    r" A restart should get past it\.": "再起動で直る見込み。",
    r"Nothing that was seen explains the failure\.": "見られたもので障害を説明できない。",
    r"The evidence is thin: no line names a cause\. Candidates, earliest first: (.+?)\.(?= |$)": r"根拠は薄い: 原因を名指す行がない。候補(早い順): \1。",
    r" Most ranks that lost a peer lost (.+?): its own log may tell why\.": r"相手を失ったランクの多くは \1 を失った: そのログが理由を示すかもしれない。",
    r" Ranks? (.+?) did not say what the others said\.": r"ランク \1 は他と異なることを出力した。",
}  # fmt: skip
"""Sentences of a diagnosis, wherever they stand in it."""
