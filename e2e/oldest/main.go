// Says whether the API server of the oldest Kubernetes that is supported takes definitions, what their CEL rules may
// cost included: its own validation, from its Go module.
//
//	cd e2e/oldest && go run . ../../crds/*.yaml
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func main() {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme).UniversalDecoder(apiextensions.SchemeGroupVersion)
	faults := 0
	for _, path := range os.Args[1:] {
		found, err := read(decoder, path)
		if err != nil {
			fmt.Fprintln(os.Stderr, path, err)
			os.Exit(2)
		}
		said := validation.ValidateCustomResourceDefinition(context.Background(), found)
		faults += len(said)
		fmt.Printf("%s: %d faults\n", found.Name, len(said))
		for _, fault := range said {
			fmt.Println("   ", fault)
		}
	}
	if faults > 0 {
		os.Exit(1)
	}
}

func read(decoder runtime.Decoder, path string) (*apiextensions.CustomResourceDefinition, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found, _, err := decoder.Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	return found.(*apiextensions.CustomResourceDefinition), nil
}
