#!/usr/bin/env python3
"""sglang 0.5.6: a request fails in the server.

r17: HTTP 500 {"object":"error","message":"Internal server error:
'output_top_logprobs'","type":"InternalServerError","param":null,"code":500}. Expected: An answer,
or a refusal that says what is wrong with the request.

This script starts nothing and talks to this machine only (127.0.0.1). Start a fresh server:

    pip install sglang==0.5.6
    python3 reproduce.py --write-model ./tiny-model
    TORCHDYNAMO_DISABLE=1 SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=2 SGLANG_VLM_CACHE_SIZE_MB=1 python3 -m sglang.launch_server --model-path ./tiny-model --context-length 1024 --port 8000 --device cpu --attention-backend torch_native --mm-attention-backend sdpa --disable-overlap-schedule --disable-fast-image-processor --sampling-backend pytorch --disable-cuda-graph --skip-server-warmup --grammar-backend none --enable-metrics --enable-cache-report --max-total-tokens 16384 --max-running-requests 8 --mem-fraction-static 0.2 --max-total-tokens=3072 --max-running-requests=4 --chunked-prefill-size=512

and then, while nobody else asks it anything:

    python3 reproduce.py [--port 8000]

Exit code: 1 the failure shows, 0 it does not, 2 no server is there.
Python 3.9 or later and nothing else. Made by mmrepro 0.1.0; its texts and images are random ones.
"""

import argparse
import base64
import http.client
import json
import pathlib
import socket
import struct
import sys
import zlib

# A request without an answer, or without a further piece of it, for so many seconds hangs.
DEADLINE_S = 12.0
# One after another.
REQUESTS = [
    {'id': 'r17',
     'path': '/v1/completions',
     'body': {'max_tokens': 16,
              'temperature': 0,
              'ignore_eos': True,
              'logprobs': 0,
              'priority': 1,
              'prompt': 'hello there'}},
]
# The tiny model: its files, and its weights' names, shapes, means and deviations.
MODEL = (
    'c-qyS4U^-<5r+SYv*fan92buyTM~hMK!A{t1QJ3%@I{fW@vb=AGM0SYacq8jM$^)(){H%*NL6ZdRlxF$Ece@z)xDPb'
    'y;nDz>aZ>Eo_twXhnu%%H?LNQ+3F@gZSKoPZkqE+)+@!oP+0L#zm|vK^N&BMPVZHRqHN0QkncW}2YJfdpI0|(v!{>s'
    'F7{O+cUklDDBIVsZoX<?nmymGZfO0!EDCwZ>hc@Cfd~@f<)M+My)4SSkys5DOIkgg_gVMKUH(#@ba272mN$(&w4r48'
    'GB3>4XYytCJl~zAwfel;<ZHZL7|c5n`HSpW)mmsK_iI@c<>9WTZQ^AY@@ZdZhw8M?<WVmP`R2Tf_f#Ea*4)b`*9&v~'
    '=gFKc)|-5%_Sr7Kq9hMF+qYX#!utQqYIRg}s=I?S(?QHs0{j2A|9PtZ^+4~^lrsCeIu%Cz+k98cZi`AC?yMNzcfH+J'
    'c_Wtnu{zi4eRpO1+U)D{P*h(Vd*}{HzG-L&b-6qDFMeLuZT9LWKQ&oXJyYA21s&9Mw1qqr<Mriyv_4)F-RZK=@1(KR'
    'AJejsm9Z4k(z>dRP`cwKt%YP11ASW9!7AjjxyOmr?xD?cR+Re|E~AcKKHK{fdUP_jM|yY6^e2kLQoZ|qemKY-oquCI'
    'V#mBu2NZAC2T?0t=DX}WmiO{>$3A-9Y9sf@>SVn-7z@N1@YT88Jj?E6dmgms;_C2l^LTc1higT4@xo)~U!UUYAPm=)'
    'V_uktuG_bcyMEHVXxja~_FP>Z)cd?On?F$>iFSkINghwtM%Hz8y8QNZHVqpMABpbD_ffmSC;fVVinG1$^12?q!rFMR'
    'j@Yq$(H+J(iP)tESj5X{-ktt^s=G6;zOPP=teZ?0carTwE$ynq9bcin43~mS2i|>TS2q{VhCWYwnGe^Y`ICswY4yV*'
    '?thxIBS$Z)n}WS2SoSaKKGE$@@nU#UQDv$Gb?@Gs&XQww>9l!!C03Wz3$IXzT%8n6cDh^lYu%}%Pbl@0)98F?KlXGI'
    '(Ge9-=C~NE7aulxe<ePgcRPIc^flI?3d-)h9qQ?f4r%*GWrtsgI;H|{%Nf1<+uy1SWVLPNi{{&(cX7~WwR*oDUF1jC'
    '<!*UbH>dJ=Y2|cv1xdWP$NDHY>Pj&rvBeLMuWE{~Yby6t8Kx#FaY|B0YHEVg>w<U%pO`FaA)K<NcdWWArAw5$3QbK^'
    ';QB=AvOGOaq3b}k-RT51MOQU7bAP1hrSH_TxUNM^P0RJhp$Vp@<$A-=gj3UUy;EqSscE_1Bs7bOX^F3Q2F-G6TCO()'
    'O*}O%*ZY7bnVOdC^}k7{ro~bB#ncLa>?-_ItNgK}@{6gJ{@79a#nftl?5O=>YQ;Zx6n`<b>Yq5OznEJ2PaNf6Os)PW'
    'j`}aA)&L}q20%=$14tYlKrpoqAaQg6!PGi{#Pz%X)H;B~(E$Wg>i`l*2M|oH14tYlKrpoqAa!&A!PGi{)X@P1Q|kay'
    'M+Xp0tpi9M9Y8R(4j^@O0O8a+fYi|egj4GPQbz|6POSq-U0?rCtpi9M9Y8p>4j^@O0O7<sfN<{U0K(<e#5g*DFrJzi'
    'M+XolQxoIp0K#-?VjLYnG@qInM+XpzsflrP08ubCF^&!(3a2K<^#njPH8GA3AeveSARHY)G_?*uI68o6Y8`-ZbO6!R'
    'IsoD50HUdN0K(A$ET+~02uBC7m|6!Q938-7Y8`-ZbO4K~bpXQA0W7B00SMPafSz^$dL*)+xa)UtGADOV-5_DV)@kPx'
    'neV=A<j3;4+(D+E?a9<@x8;khKIR)~#?=lBmHVvPZfn`pd@4yVw!@Vtc_&}+C$Jy-n5w!N=FyCR3%RL^|2foAFyB8?'
    'J@0!hluzDgK@_LzSe=`Z7`^+$Gs?fU(w=4I;oOd&*5|bzW+fHYmhB8_wWWF2`n<ig$+nfD-pf8rYn8D~q1`&)Tv#se'
    ')TtwBJhHZz^$0ObK+As6{y%RrS1a{TJA232Yr`BRfgcXDoCF@VfY;q0wSd>ITRm;c!0UQ4kbyT^z^_9;ZUO%+|Aa=A'
    '8F{P;kM&KOUS;HoCOq1ovZ+!cb4_@>LK7ZvKm&`6gqrY>BTabB3!OV2^HLKYbF2xEInjj2oNB^jev8JU82K4J1I@_W'
    '^k5Vt@6e4>Mt)9ToHFtY`bCP7U($t@kzdh>IV10C!ef3<6CU%gHQ_P8uL+O&15J3$A8Nv5{*5L)=8yCl$YcJkCOqcf'
    'X~JXvSQ8%e?=|5u|3MQT^B*<gF@K^7kNHzgc+7v&gvb16{UPBof2IkK`7fIAm_OHq$NX1Kc+7v(gvb1MO?b@z(1geQ'
    'g(k`PYOvCfhy7H4lzG_y)P#qfX~M()mnJ;yoDHCN*EdZ@Ew3g#Y+Y4H^B4LWKAK|KYQkgI<F2D8>h(<g=(+S#6CU%I'
    'n(&zQRd@8Hu`Vg2$945!{pgujT`)!uj#e}m&4}(LMvpLlr7ws)W?e}~57X(({OE}^UA9J#b)7ZgF+bOY$E^JlMo;PJ'
    'x-@#!<)tP(=5I9NF~8E+Y##Hsn(&w(G~qG-TN57h>O7z4`WigCrK_>N5RYz-YOJruquY!c>r3+JhMmUxx;(n|rLn#^'
    'k8UDq9CzjzCQpb9lc&T3lXoT?meMtGOX`NWrIp6x=a$$laZ~M@>f79uyQV5PH}$Tm)(KPZnkt?!^{%Pz2~+QSLEO~4'
    'UJ^I;t|`yL)VroU3sdi!@+>U9lxJb-r92BuFXcI~^cKV|y`4vfrI+#_n0hyq|G?C{q5KD?-VNnHF!gRI|ADD@6LHTD'
    '#wq`Ssdq#94^6!r%719;-BA8RQ}2fIA6j}T|DmOq@*i4yDgU9Rm+~K4dMW>*rI+#_ntBV$e`M+{DF2bEx1jt-rrv_`'
    'ADMa!%70|)Ehztyskfl~N2cC_@*kOc3(9|F>Mbb$k)@aNzp(UD{uh>B%KyUBOZi_|dMW=4OE2YrVd|A#e{JfOl>ddP'
    'S5p2Lrd~<;UzmC&<$r1Fm6ZRbsaI0|m!@7x`CpoPCFOr<>XnrLrKOkhzqIsH{+E_s%Ky^ROZi_~dOPzJOE2X=HuY{P'
    '|FNleOZksYz1!}09aHa?@*kUew^3*2VsgrVZ0g-o{$o?`mhvB)dbgDS#MHZ`{3n)P%70?%rTizBUdn%B>81Q9mR`z#'
    'V(F#)Cx%|tI1o=vPWew#lT-fFxydR2sW5r>duL#B%D>rJsm6hLWOB;C*;}c`f%wwol>gMyOZiVNy_Emd(z~JGk}bXT'
    'P|w`bOIAN~OYfGrsaMR2n|g&HZt4{QaZ|4diJN*wMBLOXy5Igyy`uXLz|<?~n*g)FQjH98Q?H<J1%#zHCvNFo6SwqI'
    '{)MHN@-HmClz(CArTm-ym1?Z$8xB)%K>0WOE7e#LH}wXTf3v?*jTLcIZ$SAs`zzI05jXV)-8V6&-hlFN_E)O0B5vuW'
    '{D+oa%719-rTmAMUdn%H>81RKmR`!g*<YzfkGQEfr2L!xm1^{en|edazu8}@MvuOoGWCX(f3v?*jUI7RZ%Fw!`zzJx'
    '5jXXQ-M3<vUdn%D>81QfmR`z#Wa*{+N0#2s^U=~v`8WG3)p!y&^+uF`v%gY}Cvj76MEPGV#<xH^4>a=adaA$kHf_T$'
    'yUDR-!xrwde&vI_ZoZd`+~z)Svevn6mp9$F?5`fpw$*92pOuH%UTvJKm}ie3xX0G3SF`;Wx2I|+Z=cQ{9#*S^dQrJ;'
    'VRt7-@v@$^cV7;7>c#YeVeR2Ty+H12*{;$1ZS?!`jr5Y*>*kBw_8vgH%fsyTTkYa=`*=n_WarcF_Klg^LATIuw9)a7'
    '{ia6tKV#P>9n0vA-g#$stDSXj^`5&QukM+d@Lb;WZELrN9jI)yZ`Gnc6^BA?^{D%?O~)gSnHiW)HQz>U(B6(=j)>|6'
    '*dH6?kf}4FR6iaX>_P9jKM!D-c-ei7`6XU;k<+(@Ixp9(yMbm})m^rqyJ+Bc!2<27iP#kzt}8}Xm#v^IGo`^ikh|_>'
    '=H0T@O=}&A`!)ZK+uoHsmX4c}SMFrG?u=e^Wa{s-1&i1bvTdg4L&S+Y;*tNF5AmjscrRPwc@Xt-{@qdgmg%MV?wCgg'
    'X+FdpIL~Iwr_P6vLuZ;T8#*6Cj;@EyT;~4&k>a6}A=HH<RN+^sj&jF5;=BmeQRbKhoEM=w>Kk)-^CDD7X=4U%K7<-O'
    '>KXHA^CDD78DsWqUWDqXUd&z1i%=a^i<zf+5vr?N3BSr!>?~J))vMT5uY_L(D|Qtu;aA0qT@_3CRkC7N$r66mti)Bb'
    'gkMD~aTP7$SJg^fRZI9)wh~v_5`NXK#8tNfzv@=vs#}3ybt`fHp5<5FN?dg-@T+bmuDTWYRkspX-3t7wTdAvV1%B17'
    ')K#|vzv@=%s#}3ybt`q%t-!CkmAdLy=vUoJU3Dw;t8S&Px)u6Ww^HX9gnren)K#}azv@=%s#~E~bt{~^>Q=b)D^^$C'
    '3S+-wb=9pf@hetW-3n8`Vs+K6Xzo|6uDTTozhZUOttjv-R#)AMLcd~l-r0)$iq%!OBERaEaMi8Iuev2%bu03#ZV6Z2'
    'iu|fu!d15-zv`B7)vbkJbxXMF*21s4C0uoD;aA-fuDZ4Gt8NKb-CFonw}kVN3_t4D@E3^F18&Ci#>O*ms~dWzY_yg2'
    'n3>YLlldV#AA8RodInnC(v00zI&Yb*{TtGE@^IJOlQ~AbOuFarwe<>n_`dgD85yn&PAh}O%HXXsn5qnJDua#6;GZ%W'
    'r!dD9W|hJ`QkXdkb46ixD9i_i8K5xd6J~kByiS<O33E4LwkFKagc+GI2NPyp!aPfuSqXC~VfG}<mxLLTFeegbLBhO8'
    'nCS>}8(}sh%wL2Vi!etKW+lQrM3{L9a}8m3A<QR)8H6xr5M~L&yg--<2y_2nwja#zgBg7=hmWzf2lMn`W**GNgV}d5'
    '-wtNj!JImnMF;cdV5S_*jf2^6F#io^yulndnAHaJ*kI-w%vFQgX)qrRW}v~GGni!t^U7c*8O$An*<vt13}%GE959&m'
    '1@pXMW*7PxaGMK&-rxeDx3&Q2O)UU=I}3o`$N~Ts79cRM0D)}<2n;JgU{wJElL`>nQ-Hvjq9=nT1qjS2Kwv`w0s{&V'
    'SWke!bOHo+6Cf~}0D;8>2+SowU@HLvLkSRANr1pa0tEIEATW;T$zT})0<#DZ*hGN9AOZx|5Fjvx0D&C@2#g>=U;zOF'
    '^9K;vK7hdR0R&bLATW6VfxQC=j2(J1SUP~f%mD;84j?da0D*M_2uvG5VAlWwqXrOIG=RXI0R*-TATVSAffWM?Oc+35'
    'zW@T`g`NzS3m`CC0D;W{2n-fLV66ZGQw0#%DS*I80R$EbATUn=fo%c^3==?Ll>h>h1Q6IGfWR1`Cxayd2+R;bV1obx'
    '0|XFQAArF000ediATT-rfyDs`%nd+bYXAa60}xmlfWX861oj0WFfQl_vn&9CSpf)a3P4~`00L_Q5SS8xz>WX}Mg$<R'
    'AOL~+00?XcKwvlk0;>TKm<)ixUH}Bf0zDZl1wddX00J8U5Eux6z&Zc~rU4+Z3jl#p00=AsKwu640$TtO7y^L63IGHq'
    '03aCu2f^TfPll0y5Dfc+V9Xx`1O6Zw?FYe7KM2P8K`_V<f)RcY4DW+rY##&z`yd$A2f>g&2*&e4Fqq$yVI&^}!}uT='
    '!w10tJ_ttdK`?X=f^mBg4BCTW#2y60^&l9l2f;u+2uA5aFhmc6@p%vo&i7;(nFqnJJP5|*LHYsthnt800Cz)%Fa'
)
WEIGHTS = (
    'c-p0v-Hw7V5Jq2xcug9<s>FR3V+cxBmO>FKX5W7KSq&0a+RlYWk~#BD+hf`9S4~>qW68=`pRSR}k0N1ZrM}riq?fB+'
    '`QAR<_}<$0xbI=peGa}Cu%P<_Z-2j99HlyCH49jwsvK_(+A<7C@PRm{as8?fmg>260=GzrwJz8#YepgXYPTR<Uj7Sx'
    'rnR6MG_&!hc|AI}ynmovmh5~QpAz`aDDFwVR>yaS44<schBRIpto4JXez4XLmiob6Ke*@zcm3d^ADs1rgMM(<4;K36'
    'qPmER$s)R$m@zJ2)Z(wW8zvYv=i9Kombc-;NCWl^F{|g(lQG3U9ZRkfAzA;9iL}Z@QIAsAJeWU{fs*l$sJaWG7V;bo'
    'jz<$=`$1h=EDt@yX7u=s5Z}<_8$!HtjqfzM#9B=GUS>o7UQ*~pJ&M`s=NzB#X;I#F)IWAt`g@1zUwy)ss@C1+i9)BU'
    'aB2d&{vhZNy8a;O54!#!=nuO7AnFg2{vhfPg8m@szg#Et=qlo5>4kFm1>Q*5_W'
)


def send(port, one, model, answer):
    """One request; what comes of it stands in ``answer``, piece by piece."""
    body = json.dumps({**one["body"], "model": model})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("POST", one["path"], body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer["status"] = response.status
        text = response.read().decode("utf-8", "replace")
        if response.status == 200:
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


def told(answer):
    if answer.get("silent"):
        return f"no answer for {DEADLINE_S:g} s"
    said = "the client went away" if answer.get("left") else str(answer.get("status", "failed"))
    cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
    more = answer.get("error") or repr(answer.get("text", ""))
    return f"{said} {f'({cached} tokens cached) ' if cached else ''}{more[:90]}"


def ask(port, path, body=None):
    """The JSON of an answer; None: there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        data, kind = json.dumps(body) if body else None, {"Content-Type": "application/json"}
        connection.request("POST" if body else "GET", path, data, kind)
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def main():
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--port", type=int, default=8000, help="of the server, on 127.0.0.1")
    parser.add_argument("--write-model", type=pathlib.Path, metavar="DIR", help="and end")
    arguments = parser.parse_args()
    if arguments.write_model:
        return write_model(arguments.write_model)
    port, served = arguments.port, ask(arguments.port, "/v1/models")
    if not served or not served.get("data"):
        print(f"No server answers on 127.0.0.1:{port}: the top of this file has its command.")
        return 2
    model = served["data"][0]["id"]
    answers = {}
    for one in REQUESTS:
        answers[one["id"]] = answer = {}
        send(port, one, model, answer)
        print(f"{one['id']:>6}  {told(answer)}", flush=True)
        if answer.get("silent"):
            break
    found = []
    for name, answer in answers.items():
        if not answer.get("left") and answer.get("status", 500) >= 500:
            found.append(f"request {name}: {told(answer)}")
    for sentence in found:
        print(f"SERVER-ERROR reproduced: {sentence}")
    if not found:
        print("Not reproduced: no request failed in the server.")
    return 1 if found else 0


def write_model(folder):
    """The tiny model, its weights drawn anew: random as they are in any case."""
    import random

    draw, header, blob = random.Random(0), {"__metadata__": {"format": "pt"}}, bytearray()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in json.loads(zlib.decompress(base64.b85decode(MODEL))).items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, shape, mean, deviation in json.loads(zlib.decompress(base64.b85decode(WEIGHTS))):
        count, start = 1, len(blob)
        for side in shape:
            count *= side
        for _ in range(count):  # bfloat16: the upper half of a float
            blob += struct.pack("<f", draw.gauss(mean, deviation) if deviation else mean)[2:]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(blob)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = struct.pack("<Q", len(text)) + text + blob
    (folder / "model.safetensors").write_bytes(whole)
    print(f"{folder}: a tiny model with random weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
