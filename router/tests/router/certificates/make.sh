#!/usr/bin/env bash
# Creates the certificates of this folder again. They are self-signed, for localhost, with their keys beside them.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cat > "$work/openssl.cnf" <<'END'
[req]
distinguished_name = name
[name]
[ca]
default_ca = test
[test]
database = index.txt
unique_subject = no
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = leaf
[any]
commonName = supplied
[leaf]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost
END

# Usage: pair NAME KEY BEGIN END
pair() {
    openssl req -config "$work/openssl.cnf" -new -key "$2.key.pem" -subj "/CN=Trunkline test: $1" -out "$work/$1.csr"
    (cd "$work" && touch index.txt && openssl ca -config openssl.cnf -batch -notext -selfsign -outdir . \
        -keyfile "$OLDPWD/$2.key.pem" -in "$1.csr" -startdate "$3" -enddate "$4" -out "$1.pem")
    mv "$work/$1.pem" "$1.cert.pem"
}

for key in first second; do
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$key.key.pem"
done
pair first first 20200101000000Z 29990101000000Z
pair second second 20200101000000Z 29990101000000Z
pair expired first 20100101000000Z 20200501000000Z
pair not-yet-valid first 29990101000000Z 29990601000000Z
