"""Keys and certificates of a kit. Import this only where they are needed: it needs `cryptography`."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from wardround.core.extras import needs

with needs("deploy", "a study across hospitals"):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
EARLIER = timedelta(hours=1)  # hospitals' clocks differ: a new certificate must not be "not valid yet"
LONGEST_NAME = 64  # X.509 allows no more in these fields


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


def private_pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: Key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def new_authority(study: str, days: int) -> tuple[Key, x509.Certificate]:
    """It signs certificates of coordinators and nothing below them (path length 0)."""
    key, name = new_key(), _name(study, "wardround certificate authority")
    builder = (
        _builder(key, name, name, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    return key, builder.sign(key, hashes.SHA384())


def new_certificate(
    study: str, hosts: Sequence[str], days: int, authority_key: Key, authority: x509.Certificate
) -> tuple[Key, x509.Certificate]:
    """For the coordinator's TLS. Sites accept it under every name and address in `hosts` and under no other."""
    key = new_key()
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    builder = (
        _builder(key, _name(study, "wardround coordinator"), authority.subject, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return key, builder.sign(authority_key, hashes.SHA384())


def expires(pem: bytes) -> datetime:
    """ValueError where it is not a certificate."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def _builder(key: Key, subject: x509.Name, issuer: x509.Name, days: int) -> x509.CertificateBuilder:
    begin = datetime.now(UTC).replace(microsecond=0) - EARLIER
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(study: str, role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, study[:LONGEST_NAME]),
            x509.NameAttribute(NameOID.COMMON_NAME, role),
        ]
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
