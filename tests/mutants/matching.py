"""Mistakes in the private matching of patients: somebody learns more than whom all have."""

from tests.mutants.mutant import Mutant, returns
from wardround.privacy.psi import group, psi
from wardround.privacy.psi.psi import Matcher, Party, PsiMessage, Terms

ATTACKS = "privacy/test_psi_attacks.py"
VIEWS = "privacy/test_psi_views.py"
GROUP = "privacy/test_psi_group.py"


MUTANTS = (
    Mutant(
        "ids leave without a key",
        group.hidden,
        lambda original, context, key, names, *rest: original(context, bytes([1, *bytes(31)]), names, *rest),
        "a hidden id is multiplied by the party's key",
        (f"{GROUP}::test_a_hidden_id_is_the_sum_of_two_maps_of_its_hash_times_the_key",),
    ),
    Mutant(
        "a hidden id is the same in every matching",
        group.hidden,
        lambda original, context, *rest: original(b"", *rest),
        "other contexts have other points",
        (f"{GROUP}::test_the_order_of_keys_does_not_matter_and_other_contexts_have_other_points",),
    ),
    Mutant(
        "the coordinator sees points with all keys",
        Terms.print_of,
        lambda original, self, point: point[: len(original(self, point))],
        "the coordinator sees no point with all keys",
        (
            f"{VIEWS}::test_the_coordinator_sees_no_point_with_all_keys_and_of_three_parties_it_sees_how_many_each_two_share",
        ),
    ),
    Mutant(
        "a list that names somebody twice is passed on",
        psi._increasing,
        returns(True),
        "a list that is not sorted or names somebody twice is refused",
        (f"{ATTACKS}::test_a_list_that_is_not_sorted_or_names_somebody_twice_is_refused",),
    ),
    Mutant(
        "a party adds its key to a second list",
        Party._commit,
        returns(None),
        "another message for the same place is refused",
        (f"{ATTACKS}::test_the_same_message_again_gets_the_same_answer_and_another_one_none",),
    ),
    Mutant(
        "a party may try out as many ids as it likes",
        psi.check_size,
        returns(None),
        "more ids than agreed on are refused by all",
        (f"{ATTACKS}::test_a_party_that_tries_more_ids_than_agreed_on_is_refused_by_all",),
    ),
    Mutant(
        "nobody looks at signatures of a matching",
        psi.check_message,
        returns(None),
        "a flipped bit is noticed at both ends",
        (f"{ATTACKS}::test_a_flipped_bit_is_noticed_at_both_ends",),
    ),
    Mutant(
        "parties that were told different patients go on",
        Party._take_sum,
        returns([]),
        "parties that are told different patients find out",
        (f"{ATTACKS}::test_parties_that_are_told_different_patients_find_out",),
    ),
    Mutant(
        "a list may grow on its way",
        Matcher._keep_size,
        returns(None),
        "a list that grows or shrinks on its way is refused",
        (f"{ATTACKS}::test_a_list_that_grows_or_shrinks_on_its_way_is_refused",),
    ),
    Mutant(
        "a message does not say which matching it is of",
        PsiMessage.signed,
        lambda original, self, terms: self.content,
        "a changed head is noticed",
        (f"{ATTACKS}::test_a_changed_head_is_noticed",),
    ),
)
