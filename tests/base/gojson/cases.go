// What Go decodes from JSON with odd members. With Go 1.27, or GOEXPERIMENT=jsonv2 before, whose messages are nats-server's:
//
//	go run tests/gojson/cases.go > tests/gojson/cases.json
package main

import (
	"encoding/json"
	"fmt"
)

type P struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

type T struct {
	Start string `json:"start"`
	End   string `json:"end"`
}

type S struct {
	Exp   int64             `json:"exp"`
	Unum  uint64            `json:"unum"`
	On    bool              `json:"on"`
	Ks    string            `json:"ks"`
	Src   []string          `json:"src"`
	Pub   P                 `json:"pub"`
	Resp  *P                `json:"resp"`
	Times []T               `json:"times"`
	Meta  map[string]string `json:"meta"`
}

var texts = []string{
	`null`, `{}`, `[]`, `"x"`, ``, ` `, `{"exp":1} x`, `{"exp":1}{"exp":2}`, `{"exp":1,}`, `{"exp":NaN}`, `{"exp":1`,
	`{"Exp":1}`, `{"EXP":1}`, `{"e\u0078p":1}`, `{"exp ":1}`, `{"k\u017f":"long s"}`, `{"\u212As":"kelvin"}`, `{"KS":"upper"}`,
	`{"\ufb00":"ligature"}`, `{"m\u00e9ta":{"a":"b"}}`, `{"exp":1,"Exp":2}`, `{"Exp":2,"exp":1}`, `{"exp":1,"exp":2,"EXP":3}`,
	`{"exp":1,"exp":"x","exp":3}`, `{"exp":1,"EXP":null}`, `{"ks":"a","KS":null}`, `{"on":true,"ON":false}`, `{"on":1}`,
	`{"exp":-0}`, `{"unum":-0}`, `{"exp":1e2}`, `{"exp":1.0}`, `{"exp":true}`, `{"exp":9223372036854775807}`,
	`{"exp":9223372036854775808}`, `{"unum":18446744073709551615}`, `{"unum":18446744073709551616}`, `{"unum":-1}`,
	`{"pub":{"deny":["a"]},"pub":{"allow":["b"]}}`, `{"pub":{"deny":["a"]},"Pub":{"Allow":["b"]}}`,
	`{"PUB":{"DENY":["a"],"deny":["b","c"]}}`, `{"pub":{"deny":["a"]},"pub":null}`, `{"pub":null}`, `{"pub":[]}`, `{"pub":{"deny":"a"}}`,
	`{"pub":{"deny":["a"]},"pub":{"deny":["b"]},"PUB":{"allow":["c"]}}`, `{"pub":{"deny":["a"]},"pub":"x"}`,
	`{"pub":{"deny":["a"]},"ks":"between","pub":{"deny":null}}`,
	`{"resp":{"deny":["a"]},"resp":{"allow":["b"]}}`, `{"resp":{"deny":["a"]},"resp":null}`, `{"resp":{"deny":["a"]},"resp":null,"resp":{}}`,
	`{"src":["a","b"],"src":["x"]}`, `{"src":["a"],"src":["x","y"]}`, `{"src":["a"],"src":[]}`, `{"src":["a"],"src":null}`,
	`{"src":["a","b","c"],"src":[null,"x",null]}`, `{"src":[null]}`, `{"src":["a",1]}`, `{"src":["a"],"SRC":"b"}`, `{"src":{}}`,
	`{"times":[{"start":"1","end":"2"},{"start":"3"}],"times":[{"start":"9"}]}`, `{"times":[{"start":"1"}],"Times":[{"End":"2"},{}]}`,
	`{"times":[{"start":"1"}],"times":[null]}`, `{"times":[{"start":"1","START":"2"}]}`, `{"times":[1]}`,
	`{"meta":{"a":"1"},"meta":{"b":"2"}}`, `{"meta":{"a":"1","A":"2"}}`, `{"meta":{"a":"1","a":"2"}}`, `{"meta":{"a":"1"},"meta":{"a":null}}`,
	`{"meta":{"a":"1"},"meta":null}`, `{"meta":{"a":"1"},"meta":null,"META":{"b":"2"}}`, `{"meta":{"a":1}}`,
	`{"ks":"\ud800"}`, `{"ks":"\ud800\udc00"}`, `{"ks":"\ud800\ud801\udc01x"}`, `{"ks":"\udc00\\ud800"}`, "{\"ks\":\"\xff\"}", "{\"ks\":\"\x01\"}",
	`{"k\ud800":1,"ks":"\u00e9"}`, `{"ks":"\x"}`, `{"ks":"\u12"}`, `{"exp":01}`, `{"exp":+1}`, `{"exp":.5}`, `{'exp':1}`, `{"exp" 1}`,
}

func main() {
	fmt.Println("[")
	for i, text := range texts {
		var value S
		said := ""
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			said = err.Error()
		}
		row, _ := json.Marshal([]any{[]byte(text), value, said})
		comma := ","
		if i == len(texts)-1 {
			comma = ""
		}
		fmt.Printf("%s%s\n", row, comma)
	}
	fmt.Println("]")
}
