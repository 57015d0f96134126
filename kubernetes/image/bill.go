// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// bill of materials, as SPDX 2.3 has it.
type bill struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creation       `json:"creationInfo"`
	Packages          []material     `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creation struct {
	// The format wants a time: the same program is the same bill, so it is none.
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type material struct {
	SPDXID           string     `json:"SPDXID"`
	Name             string     `json:"name"`
	VersionInfo      string     `json:"versionInfo"`
	DownloadLocation string     `json:"downloadLocation"`
	FilesAnalyzed    bool       `json:"filesAnalyzed"`
	ExternalRefs     []external `json:"externalRefs,omitempty"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// writeBill of a Go program: what the linker says of its modules. Other programs have none.
func writeBill(program, tag, path string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	made := bill{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: tag,
		DocumentNamespace: fmt.Sprintf("https://spdx.org/spdxdocs/%s-%x", strings.NewReplacer("/", "-", ":", "-").Replace(tag), sha256.Sum256(content)),
		CreationInfo:      creation{"1970-01-01T00:00:00Z", []string{"Tool: prezero-image"}},
	}
	add := func(name, version string) string {
		id := fmt.Sprintf("SPDXRef-Package-%d", len(made.Packages))
		made.Packages = append(made.Packages, material{id, name, version, "NOASSERTION", false, []external{
			{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:golang/%s@%s", name, version)},
		}})
		return id
	}
	main := add(info.Main.Path, info.Main.Version)
	made.Relationships = append(made.Relationships, relationship{"SPDXRef-DOCUMENT", "DESCRIBES", main})
	depends := func(id string) {
		made.Relationships = append(made.Relationships, relationship{main, "DEPENDS_ON", id})
	}
	depends(add("stdlib", info.GoVersion))
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		depends(add(module.Path, module.Version))
	}
	text, err := json.MarshalIndent(made, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
